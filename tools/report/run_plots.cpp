// SPDX-License-Identifier: Apache-2.0
#include "tools/report/run_plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/files/file.h"
#include "io/formats/json_error.h"
#include "tools/page/page_file.h"

namespace arbalest {
namespace {

using nlohmann::json;

// The first metric that is no loss, of the first run that has one; "loss" if none has.
std::string metric_of(const std::vector<RunLog>& runs) {
  for (const RunLog& run : runs) {
    for (const auto& [name, values] : run["validations"]["values"].items()) {
      if (name != "loss" && !values["at"].empty()) return name;
    }
  }
  return "loss";
}

// "accuracy >= 0.98 after 12.3 s", of those that are the metric's.
std::string reached_of(const RunLog& run, const std::string& metric) {
  std::string text;
  if (!run["end"].is_object() || !run["end"].contains("targets")) return text;
  for (const auto& target : run["end"]["targets"]) {
    const auto words = target["target"].get<std::string>();
    if (!words.starts_with(metric + " ")) continue;
    text += target["seconds"].is_number() && target["seconds"] >= 0
                ? fmt::format("; {} after {:.1f} s", words, target["seconds"].get<double>())
                : fmt::format("; {} not reached", words);
  }
  return text;
}

// "lenet: " if that is what all runs trained, as far as their logs tell.
std::string graph_of(const std::vector<RunLog>& runs) {
  std::set<std::string> graphs;
  for (const RunLog& run : runs) {
    const auto& start = run["start"];
    const bool known = start.is_object() && start.contains("graph") && start["graph"].is_string();
    graphs.insert(known ? name_without(start["graph"].get<std::string>(), {".onnxtxt", ".onnx"}) : "");
  }
  return graphs.size() == 1 && !graphs.begin()->empty() ? *graphs.begin() + ": " : "";
}

// The number after "accuracy >= ".
double bound_of(const std::string& target) {
  return std::strtod(target.c_str() + target.rfind(' ') + 1, nullptr);
}

struct Cell {
  int devices = 1, learners = 1;
  double median = 0, least = 0, most = 0;
  std::string graph;
};

// A count of a cell: a number beyond what an int holds would be converted to any.
int count_in(const json& cell, const char* name) {
  constexpr int64_t kMost = 1'000'000;
  const json& count = cell.at(name);
  const auto value = count.is_number_integer() ? count.get<int64_t>() : 0;
  if (value >= 1 && value <= kMost) return int(value);
  throw GraphError(fmt::format("'{}': found {}, expected a whole number from 1 to {}", name, count.dump(), kMost));
}

std::vector<Cell> cells_in(const std::string& file) {
  std::vector<Cell> cells;
  int number = 0;
  for (const std::string& line : read_lines(file)) {
    ++number;
    if (line.empty()) continue;
    try {
      const json cell = json::parse(line);
      if (cell.value("event", "") != "cell") throw GraphError("expected a line of bench scaling --json");
      if (cell.contains("error")) continue;
      cells.push_back({count_in(cell, "device_count"), count_in(cell, "learners"), cell.at("images_per_second"),
                       cell.at("images_per_second_min"), cell.at("images_per_second_max"), cell.at("graph")});
    } catch (const json::exception& error) {
      throw GraphError(Position{file, number, 1}, message_of(error));
    } catch (const GraphError& error) {
      throw GraphError(Position{file, number, 1}, error.what());
    }
  }
  if (cells.empty()) throw GraphError(Position{file, 0, 0}, "holds no cell that was measured");
  return cells;
}

std::string name_of(const std::string& file) {
  return std::filesystem::path(file).stem().string();
}

}  // namespace

LinePlot accuracy_plot(const std::vector<RunLog>& runs) {
  const std::string metric = metric_of(runs);
  LinePlot plot;
  plot.title = fmt::format("{}{} over time", graph_of(runs), metric);
  plot.x_label = "seconds of training";
  plot.y_label = fmt::format("validation {}", metric);
  std::set<double> targets;
  double longest = 0;
  for (const RunLog& run : runs) {
    const auto& points = run["validations"];
    if (!points["values"].contains(metric)) continue;
    const auto& values = points["values"][metric];
    PlotLine line;
    for (size_t i = 0; i < values["at"].size(); ++i) {
      const auto &seconds = points["seconds"][values["at"][i].get<size_t>()], &value = values["value"][i];
      if (!seconds.is_number() || !value.is_number()) continue;
      line.points.push_back({seconds.get<double>(), value.get<double>(), value.get<double>(), value.get<double>()});
      longest = std::max(longest, line.points.back().x);
    }
    if (line.points.empty()) continue;
    line.name = run["name"].get<std::string>() + reached_of(run, metric);
    plot.lines.push_back(std::move(line));
    if (!run["end"].is_object() || !run["end"].contains("targets")) continue;
    for (const auto& target : run["end"]["targets"]) {
      const auto words = target["target"].get<std::string>();
      if (words.starts_with(metric + " ")) targets.insert(bound_of(words));
    }
  }
  if (plot.lines.empty()) throw GraphError("no run has a validation: there is nothing to plot");
  for (const double target : targets) {
    plot.lines.push_back({"", {{0, target, target, target}, {longest, target, target, target}}, true});
  }
  return plot;
}

LinePlot scaling_plot(const std::vector<std::string>& files) {
  std::vector<std::vector<Cell>> all;
  std::set<int> devices, learners;
  for (const std::string& file : files) {
    all.push_back(cells_in(file));
    for (const Cell& cell : all.back()) {
      devices.insert(cell.devices);
      learners.insert(cell.learners);
    }
  }
  const bool over_devices = devices.size() > 1;
  LinePlot plot;
  plot.title = fmt::format("{}: throughput over {}", all[0][0].graph, over_devices ? "devices" : "learners");
  plot.x_label = over_devices ? "devices" : "learners on a device";
  plot.y_label = "images/s";
  plot.from_zero = true;
  for (const int count : over_devices ? devices : learners) plot.x_ticks.push_back(count);
  for (size_t file = 0; file < all.size(); ++file) {
    std::map<int, PlotLine> lines;  // by learners, or one
    for (const Cell& cell : all[file]) {
      PlotLine& line = lines[over_devices ? cell.learners : 0];
      line.points.push_back({double(over_devices ? cell.devices : cell.learners), cell.median, cell.least, cell.most});
      line.name = files.size() > 1 ? name_of(files[file]) : "";
      if (!over_devices) continue;
      line.name += fmt::format("{}{} learner{} on each", line.name.empty() ? "" : ", ", cell.learners,
                               cell.learners == 1 ? "" : "s");
    }
    for (auto& [count, line] : lines) {
      std::sort(line.points.begin(), line.points.end(), [](auto& a, auto& b) { return a.x < b.x; });
      plot.lines.push_back(std::move(line));
    }
  }
  if (over_devices) {
    const std::vector<PlotLine> measured = plot.lines;
    for (const PlotLine& line : measured) {
      const double each = line.points.front().y / line.points.front().x, most = plot.x_ticks.back();
      plot.lines.push_back({&line == &measured.front() ? "as many times the first" : "",
                            {line.points.front(), {most, each * most, each * most, each * most}},
                            true});
    }
  }
  return plot;
}

}  // namespace arbalest
