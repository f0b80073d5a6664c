// SPDX-License-Identifier: Apache-2.0
#include "tools/answers/label_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace arbalest {
namespace {

using Json = nlohmann::ordered_json;

Json number_or_null(double value) {
  return std::isnan(value) ? Json(nullptr) : Json(value);
}

Json to_json(const LabelRates& rates) {
  return {{"threshold", number_or_null(rates.threshold)},
          {"sensitivity", number_or_null(rates.sensitivity)},
          {"specificity", number_or_null(rates.specificity)},
          {"precision", number_or_null(rates.precision)}};
}

std::string text_of(double value) {
  return std::isnan(value) ? "-" : fmt::format("{:.4f}", value);
}

}  // namespace

std::string label_table(const LabelCounts& counts, const std::vector<std::string>& names, double threshold) {
  size_t width = 5;
  for (const std::string& name : names) width = std::max(width, std::min<size_t>(printable(name).size(), 24));
  const auto line = [&](const std::string& name, const LabelRates& rates, const std::string& more) {
    return fmt::format("{:<{}}  {}  {:>9}  {:>11}  {:>11}  {:>9}\n", name, width, more, text_of(rates.threshold),
                       text_of(rates.sensitivity), text_of(rates.specificity), text_of(rates.precision));
  };
  const auto head = [&](const std::string& more) {
    return fmt::format("{:<{}}  {}  threshold  sensitivity  specificity  precision\n", "label", width, more);
  };
  std::string text = head("positive  negative");
  for (size_t label = 0; label < counts.labels(); ++label) {
    text += line(printable(names[label]), counts.at(label, threshold),
                 fmt::format("{:>8}  {:>8}", counts.positive(label), counts.negative(label)));
  }
  text += "at the threshold where sensitivity and specificity have the greatest sum\n" + head("                  ");
  for (size_t label = 0; label < counts.labels(); ++label) {
    text += line(printable(names[label]), counts.best(label), "                  ");
  }
  return text;
}

Json label_rates(const LabelCounts& counts, const std::vector<std::string>& names, double threshold) {
  Json all = Json::array();
  for (size_t label = 0; label < counts.labels(); ++label) {
    Json one = {{"label", names[label]}, {"positive", counts.positive(label)}, {"negative", counts.negative(label)}};
    one.update(to_json(counts.at(label, threshold)));
    one["best"] = to_json(counts.best(label));
    all.push_back(std::move(one));
  }
  return all;
}

}  // namespace arbalest
