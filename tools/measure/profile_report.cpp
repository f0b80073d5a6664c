// SPDX-License-Identifier: Apache-2.0
#include "tools/measure/profile_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>

namespace arbalest {
namespace {

// A sum over nodes.
struct Total {
  std::string name;
  int nodes = 0;
  double seconds = 0, limit = 0;  // limit: of each node by itself
  Cost cost;

  void add(const NodeProfile& node, const DeviceLimits& limits) {
    ++nodes;
    seconds += node.seconds;
    limit += limits.seconds(node.cost);
    cost.flops += node.cost.flops;
    cost.bytes += node.cost.bytes;
  }
};

// In the order in which the names are met.
std::vector<Total> totals(const StepProfile& step, const std::function<std::string(const NodeProfile&)>& name) {
  std::vector<Total> all;
  std::map<std::string, size_t> place;
  for (const NodeProfile& node : step.nodes) {
    const auto [at, added] = place.try_emplace(name(node), all.size());
    if (added) all.push_back({.name = at->first});
    all[at->second].add(node, step.limits);
  }
  return all;
}

std::string scaled(double number, const char* unit) {
  constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P"};
  size_t prefix = 0;
  for (; number >= 1000 && prefix + 1 < std::size(kPrefixes); ++prefix) number /= 1000;
  return fmt::format("{:.{}f} {}{}", number, number < 9.995 ? 2 : number < 99.95 ? 1 : 0, kPrefixes[prefix], unit);
}

double ratio(double part, double whole) {
  return whole > 0 ? part / whole : 0;
}

std::string memory_text(const char* what, int64_t bytes) {
  return bytes < 0 ? "" : fmt::format(", {} {:.1f} MiB", what, double(bytes) / (1 << 20));
}

// Null: unknown.
nlohmann::ordered_json bytes_or_null(int64_t bytes) {
  return bytes < 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(bytes);
}

std::string line(const Total& total, double all, size_t width) {
  return fmt::format("{:{}} {:>6} {:>10.3f} {:>6.1f} % {:>10} {:>12} {:>7.0f} %\n", total.name, width, total.nodes,
                     total.seconds * 1e3, 100 * ratio(total.seconds, all), scaled(total.cost.bytes, "B"),
                     scaled(total.cost.flops, "FLOP"), 100 * ratio(total.limit, total.seconds));
}

std::string table(const char* title, const std::vector<Total>& rows, double all) {
  size_t width = std::string_view(title).size();
  for (const Total& row : rows) width = std::max(width, row.name.size());
  std::string text = fmt::format("\n{:{}} {:>6} {:>10} {:>8} {:>10} {:>12} {:>9}\n", title, width, "nodes", "ms",
                                 "share", "bytes", "operations", "of limit");
  for (const Total& row : rows) text += line(row, all, width);
  return text;
}

}  // namespace

std::string profile_text(const ProfiledRun& run, int slowest, bool layers) {
  const StepProfile& step = run.step;
  const DeviceLimits& limits = step.limits;
  Total all;
  for (const NodeProfile& node : step.nodes) all.add(node, limits);
  std::string text = fmt::format(
      "{} on {}: {}, batch {}: {:.1f} images/s, planned peak {:.1f} MiB{}{}\n"
      "a step takes {:.3f} ms by itself; its {} nodes, one after the other, {:.3f} ms; their limits are {:.3f} ms\n"
      "limits of the device, measured: {}/s, {}/s\n",
      run.graph, run.device, run.precision, run.batch, run.images_per_second,
      double(run.planned_peak_bytes) / (1 << 20), memory_text("libraries", step.library_bytes),
      memory_text("taken", step.taken_bytes), step.seconds * 1e3, step.nodes.size(), all.seconds * 1e3, all.limit * 1e3,
      scaled(limits.bytes_per_second, "B"), scaled(limits.flops_per_second, "FLOP"));
  text += table("stage", totals(step, [](const NodeProfile& node) { return std::string(name_of(node.stage)); }),
                all.seconds);
  std::vector<Total> operators = totals(step, [](const NodeProfile& node) { return node.op; });
  std::sort(operators.begin(), operators.end(), [](const Total& a, const Total& b) { return a.seconds > b.seconds; });
  text += table("operator", operators, all.seconds);
  if (layers) text += table("layer", totals(step, [](const NodeProfile& node) { return node.layer; }), all.seconds);

  std::vector<const NodeProfile*> nodes;
  for (const NodeProfile& node : step.nodes) nodes.push_back(&node);
  const auto lost = [&](const NodeProfile* node) { return node->seconds - limits.seconds(node->cost); };
  std::stable_sort(nodes.begin(), nodes.end(), [&](auto* a, auto* b) { return lost(a) > lost(b); });
  nodes.resize(std::min(nodes.size(), size_t(slowest)));
  size_t width = 4;
  for (const NodeProfile* node : nodes) width = std::max(width, node->name.size());
  if (!nodes.empty()) {
    text += fmt::format("\n{:{}} {:>10} {:>10} {:>8} {:>12}  engine\n", "furthest from the limit",
                        std::max(width, size_t{23}), "ms", "limit, ms", "lost", "by");
  }
  for (const NodeProfile* node : nodes) {
    const bool math =
        ratio(node->cost.flops, limits.flops_per_second) > ratio(node->cost.bytes, limits.bytes_per_second);
    text += fmt::format("{:{}} {:>10.3f} {:>10.3f} {:>6.1f} % {:>12}  {}\n", node->name, std::max(width, size_t{23}),
                        node->seconds * 1e3, limits.seconds(node->cost) * 1e3, 100 * ratio(lost(node), all.seconds),
                        math ? "operations" : "memory", node->engine.empty() ? node->op : node->engine);
  }
  return text;
}

nlohmann::ordered_json profile_record(const ProfiledRun& run) {
  using Json = nlohmann::ordered_json;
  Json record = {{"graph", run.graph},
                 {"device", run.device},
                 {"precision", run.precision},
                 {"batch", run.batch},
                 {"images_per_second", run.images_per_second},
                 {"planned_peak_bytes", run.planned_peak_bytes},
                 {"library_bytes", bytes_or_null(run.step.library_bytes)},
                 {"taken_bytes", bytes_or_null(run.step.taken_bytes)},
                 {"step_seconds", run.step.seconds},
                 {"bytes_per_second", run.step.limits.bytes_per_second},
                 {"flops_per_second", run.step.limits.flops_per_second},
                 {"nodes", Json::array()}};
  for (const NodeProfile& node : run.step.nodes) {
    record["nodes"].push_back({{"name", node.name},
                               {"layer", node.layer},
                               {"op", node.op},
                               {"stage", name_of(node.stage)},
                               {"engine", node.engine},
                               {"seconds", node.seconds},
                               {"limit_seconds", run.step.limits.seconds(node.cost)},
                               {"bytes", node.cost.bytes},
                               {"flops", node.cost.flops}});
  }
  return record;
}

}  // namespace arbalest
