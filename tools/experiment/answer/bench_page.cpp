// SPDX-License-Identifier: Apache-2.0
#include "tools/experiment/answer/bench_page.h"

#include <cmath>

namespace arbalest {
namespace {

using Json = nlohmann::ordered_json;

Json record_of(const TableValue& value) {
  Json record = {{"text", value.text}};
  if (value.number && std::isfinite(*value.number)) record["number"] = *value.number;
  if (value.interval) {
    record["low"] = value.interval->low;
    record["high"] = value.interval->high;
  }
  return record;
}

Json record_of(const ResultTable& table) {
  Json columns = Json::array(), rows = Json::array();
  for (const TableColumn& column : table.columns) {
    columns.push_back({{"name", column.name}, {"number", column.number}, {"interval", column.interval}});
  }
  for (const auto& values : table.rows) {
    Json row = Json::array();
    for (const TableValue& value : values) row.push_back(record_of(value));
    rows.push_back(std::move(row));
  }
  return {{"title", table.title}, {"columns", columns}, {"rows", rows}, {"notes", table.notes}};
}

}  // namespace

std::string bench_page(const BenchPage& page) {
  Json record = {{"title", page.title}, {"file", page.file}, {"text", page.text}, {"tables", Json::array()}};
  for (const ResultTable& table : page.tables) record["tables"].push_back(record_of(table));
  record["plots"] = Json::array();
  for (const BenchPlot& plot : page.plots) {
    record["plots"].push_back({{"table", plot.table}, {"title", plot.title}, {"file", plot.file}, {"svg", plot.svg}});
  }
  record["environment"] = Json::array();
  for (const auto& [name, text] : page.environment) record["environment"].push_back({name, text});
  HtmlPage html(page.title, kBenchParts);
  html.add_json("experiment", record);
  html.add_script();
  return html.finish();
}

}  // namespace arbalest
