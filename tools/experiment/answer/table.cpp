// SPDX-License-Identifier: Apache-2.0
#include "tools/experiment/answer/table.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "io/formats/csv_field.h"
#include "tools/experiment/cells/expression.h"

namespace arbalest {
namespace {

// Columns that a terminal shows: bytes of UTF-8 that begin a character.
size_t width_of(const std::string& text) {
  return size_t(std::count_if(text.begin(), text.end(), [](char c) { return (c & '\xC0') != '\x80'; }));
}

std::string padded(const std::string& text, size_t width, bool right) {
  const std::string blanks(width - std::min(width, width_of(text)), ' ');
  return right ? blanks + text : text + blanks;
}

std::string without_end(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

std::string plain(const ResultTable& table) {
  std::vector<size_t> widths;
  for (size_t c = 0; c < table.columns.size(); ++c) {
    widths.push_back(width_of(table.columns[c].name));
    for (const auto& row : table.rows) widths[c] = std::max(widths[c], width_of(printable(row[c].text)));
  }
  std::string text = printable(table.title) + "\n", heading;
  for (size_t c = 0; c < table.columns.size(); ++c) {
    heading += (c > 0 ? "  " : "") + padded(table.columns[c].name, widths[c], table.columns[c].number);
  }
  text += without_end(heading) + "\n";
  for (const auto& row : table.rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      line += (c > 0 ? "  " : "") + padded(printable(row[c].text), widths[c], table.columns[c].number);
    }
    text += without_end(line) + "\n";
  }
  for (const std::string& note : table.notes) text += printable(note) + "\n";
  return text;
}

std::string in_markdown(const std::string& text) {
  std::string safe;
  for (const char c : printable(text)) {
    if (c == '|' || c == '<' || c == '*') safe += '\\';
    safe += c;
  }
  return safe;
}

std::string markdown(const ResultTable& table) {
  std::string text = fmt::format("**{}**\n\n|", in_markdown(table.title)), rule = "|";
  for (const TableColumn& column : table.columns) {
    text += fmt::format(" {} |", in_markdown(column.name));
    rule += column.number ? " ---: |" : " --- |";
  }
  text += "\n" + rule + "\n";
  for (const auto& row : table.rows) {
    text += "|";
    for (const TableValue& value : row) text += fmt::format(" {} |", in_markdown(value.text));
    text += "\n";
  }
  if (!table.notes.empty()) text += "\n";
  for (const std::string& note : table.notes) text += fmt::format("- {}\n", in_markdown(note));
  return text;
}

std::string csv(const ResultTable& table) {
  const auto number = [](const std::optional<double>& value) { return value ? text_of(*value) : ""; };
  std::string text = "table";
  for (const TableColumn& column : table.columns) {
    text += fmt::format(",{}", csv_field(column.name));
    if (column.interval)
      text += fmt::format(",{},{}", csv_field(column.name + " low"), csv_field(column.name + " high"));
    for (const std::string& part : column.parts) text += "," + csv_field(column.name + " " + part);
  }
  text += "\n";
  for (const auto& row : table.rows) {
    text += csv_field(table.title);
    for (size_t c = 0; c < row.size(); ++c) {
      const TableColumn& column = table.columns[c];
      text += "," + (column.number ? number(row[c].number) : csv_field(row[c].text));
      if (column.interval) {
        text += row[c].interval ? fmt::format(",{},{}", row[c].interval->low, row[c].interval->high) : ",,";
      }
      for (size_t part = 0; part < column.parts.size(); ++part) {
        text += "," + (part < row[c].parts.size() ? number(row[c].parts[part]) : "");
      }
    }
    text += "\n";
  }
  return text;
}

}  // namespace

std::string print_tables(const std::vector<ResultTable>& tables, TableFormat format) {
  std::string text;
  for (const ResultTable& table : tables) {
    text += text.empty() ? "" : "\n";
    text += format == TableFormat::Text ? plain(table) : format == TableFormat::Markdown ? markdown(table) : csv(table);
  }
  return text;
}

}  // namespace arbalest
