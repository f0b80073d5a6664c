// SPDX-License-Identifier: Apache-2.0
#include "tools/experiment/answer/bench_plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>
#include <string_view>

#include "base/number.h"
#include "tools/report/line_plot.h"

namespace arbalest {
namespace {

// The number of a row in a column, if it is there and finite.
std::optional<double> number_in(const std::vector<TableValue>& row, size_t column) {
  const std::optional<double>& number = row[column].number;
  return number && std::isfinite(*number) ? number : std::nullopt;
}

// The target of a column "s to 0.9", or "epochs to 0.9".
std::optional<double> target_of(const TableColumn& column, std::string_view unit) {
  const std::string begin = fmt::format("{} to ", unit);
  return column.name.starts_with(begin) ? read_number<double>(column.name.substr(begin.size())) : std::nullopt;
}

// The number that the values of a column are compared with; none: they are no ratios.
std::optional<double> mark_of(const std::string& column) {
  if (column.ends_with("efficiency")) return 100;
  const bool ratio = column.starts_with("against ") || column.starts_with("speed-up") || column == "of images/s";
  return ratio ? std::optional(1.0) : std::nullopt;
}

class Plots {
 public:
  explicit Plots(const ResultTable& table) : table_(table) {}

  std::vector<BenchPlot> all() {
    against_targets("s", "Seconds to each target", "seconds");
    against_targets("epochs", "Epochs to each target", "epochs");
    against_times();
    for (size_t column = 1; column < table_.columns.size(); ++column) of_column(column);
    return std::move(plots_);
  }

 private:
  void add(const std::string& title, std::string svg) { plots_.push_back({table_.title, title, "", std::move(svg)}); }

  void of_column(size_t at) {
    const TableColumn& column = table_.columns[at];
    if (!column.number || column.name == "repetitions" || column.name == "runs") return;
    const bool bytes = column.name == "planned memory" || column.name == "taken of the GPU";
    RowPlot plot{column.name + (bytes ? ", bytes" : ""), {}, mark_of(column.name)};
    for (const auto& row : table_.rows) {
      const std::optional<double> number = number_in(row, at);
      if (!number) continue;
      const Confidence range = row[at].interval.value_or(Confidence{*number, *number});
      plot.rows.push_back({row[0].text, row[at].text, *number, range.low, range.high});
    }
    // One ratio is a comparison already: its baseline is the mark.
    if (plot.rows.size() > (plot.mark ? 0 : 1)) add(plot.title, svg_of(plot));
  }

  // A line for each row that met two targets or more.
  void against_targets(std::string_view unit, const std::string& title, const std::string& label) {
    std::vector<size_t> columns;
    LinePlot plot{title, "target", label, {}, {}, true};
    for (size_t column = 0; column < table_.columns.size(); ++column) {
      const std::optional<double> target = target_of(table_.columns[column], unit);
      if (!target) continue;
      columns.push_back(column);
      plot.x_ticks.push_back(*target);
    }
    for (const auto& row : table_.rows) {
      PlotLine line{row[0].text, {}};
      for (size_t t = 0; t < columns.size(); ++t) {
        const std::optional<double> number = number_in(row, columns[t]);
        if (number) line.points.push_back({plot.x_ticks[t], *number, *number, *number});
      }
      if (line.points.size() > 1) plot.lines.push_back(std::move(line));
    }
    if (!plot.lines.empty()) add(title, svg_of(plot));
  }

  // A point for each row with a time and a price to the same target, and a line through those that no other is better
  // than in both.
  void against_times() {
    LinePlot plot{"Price against time", "", "", {}, {}, true};
    std::vector<PlotPoint> points;
    for (size_t time = 0; time + 1 < table_.columns.size(); ++time) {
      const std::string &seconds_to = table_.columns[time].name, &money_to = table_.columns[time + 1].name;
      if (!seconds_to.starts_with("s to ") || !money_to.ends_with(seconds_to.substr(1))) continue;
      if (money_to.starts_with("epochs ")) continue;
      if (plot.x_label.empty()) {
        plot.x_label = seconds_to;
        plot.y_label = money_to;
      }
      for (const auto& row : table_.rows) {
        const std::optional<double> seconds = number_in(row, time), price = number_in(row, time + 1);
        if (!seconds || !price) continue;
        points.push_back({*seconds, *price, *price, *price});
        const char* const machine = seconds_to.ends_with(" on spot") ? " on spot" : "";
        plot.lines.push_back({row[0].text + machine, {points.back()}, false, true});
      }
    }
    if (points.size() < 2) return;
    plot.lines.push_back({"no other is both faster and cheaper", front_of(points), true});
    add(plot.title, svg_of(plot));
  }

  static std::vector<PlotPoint> front_of(const std::vector<PlotPoint>& points) {
    std::vector<PlotPoint> front;
    for (const PlotPoint& point : points) {
      const bool beaten = std::any_of(points.begin(), points.end(), [&](const PlotPoint& other) {
        return other.x <= point.x && other.y <= point.y && (other.x < point.x || other.y < point.y);
      });
      if (!beaten) front.push_back(point);
    }
    std::sort(front.begin(), front.end(), [](const PlotPoint& a, const PlotPoint& b) { return a.x < b.x; });
    return front;
  }

  const ResultTable& table_;
  std::vector<BenchPlot> plots_;
};

// "throughput-images-s": letters and digits with dashes between them.
std::string file_words(const std::string& text) {
  std::string words;
  for (const char byte : text) {
    const auto letter = static_cast<unsigned char>(byte);
    if (letter < 0x80 && (std::isalnum(letter) || byte == '.')) {
      words += char(std::tolower(letter));
    } else if (!words.empty() && words.back() != '-') {
      words += '-';
    }
  }
  while (words.ends_with('-')) words.pop_back();
  constexpr size_t kMost = 80;
  return words.substr(0, kMost);
}

}  // namespace

std::vector<BenchPlot> bench_plots(const std::vector<ResultTable>& tables) {
  std::vector<BenchPlot> all;
  for (const ResultTable& table : tables) {
    for (BenchPlot& plot : Plots(table).all()) {
      const std::string name = file_words(plot.table + " " + plot.title);
      const auto is_taken = [&](const std::string& file) {
        return std::any_of(all.begin(), all.end(), [&](const BenchPlot& other) { return other.file == file; });
      };
      plot.file = name + ".svg";
      for (int number = 2; is_taken(plot.file); ++number) plot.file = fmt::format("{}-{}.svg", name, number);
      all.push_back(std::move(plot));
    }
  }
  return all;
}

}  // namespace arbalest
