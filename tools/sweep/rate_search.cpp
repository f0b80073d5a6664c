// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/rate_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "graph/op.h"
#include "ops/names.h"
#include "tools/report/line_plot.h"
#include "tools/sweep/leaderboard.h"

namespace arbalest {
namespace {

constexpr int64_t kIterations = 200;
constexpr double kTop = 1.5;  // of the loss of rates at which nothing is learned

// Rates in ascending order, and the mean loss of the trials at each. A rate has none if one of its trials failed.
struct RateLosses {
  std::string others;  // settings that these trials share, as text
  std::vector<std::pair<double, double>> losses;
  std::set<double> failed;
};

std::vector<RateLosses> losses_of(const SweepRecord& record) {
  std::map<std::string, std::map<double, std::vector<double>>> values;
  std::vector<RateLosses> all;
  for (int trial = 0; trial < int(record.plan.trials.size()); ++trial) {
    TrialSettings others = record.plan.trials[size_t(trial)];
    const auto rate = std::find_if(others.begin(), others.end(), [](const auto& each) { return is_rate(each.first); });
    const SweepResult* result = last_result(record, trial);
    if (rate == others.end() || !result) continue;
    const double number = std::atof(rate->second.c_str());
    others.erase(rate);
    const std::string text = to_string(others, false);
    auto group = std::find_if(all.begin(), all.end(), [&](const RateLosses& each) { return each.others == text; });
    if (group == all.end()) group = all.insert(all.end(), {text, {}, {}});
    const bool failed = !result->error.empty() || !result->loss || !std::isfinite(*result->loss);
    if (failed) {
      group->failed.insert(number);
    } else {
      values[text][number].push_back(*result->loss);
    }
  }
  for (const RateLosses& group : all) {
    for (const double rate : group.failed) values[group.others].erase(rate);
  }
  std::erase_if(all, [&](const RateLosses& group) { return values[group.others].empty(); });
  for (RateLosses& group : all) {
    for (const auto& [rate, losses] : values[group.others]) {
      group.losses.emplace_back(rate, std::accumulate(losses.begin(), losses.end(), 0.0) / double(losses.size()));
    }
  }
  return all;
}

// The loss of rates at which nothing is learned: the lowest rate's, or the median where that one is the best. The
// greatest would be that of a rate at which the training is about to fail.
double untrained_loss(const RateLosses& group, double best) {
  if (group.losses.front().second > best) return group.losses.front().second;
  std::vector<double> losses;
  for (const auto& [rate, loss] : group.losses) losses.push_back(loss);
  std::nth_element(losses.begin(), losses.begin() + std::ptrdiff_t(losses.size() / 2), losses.end());
  return losses[losses.size() / 2];
}

std::string advice(const RateLosses& group) {
  const auto& losses = group.losses;
  const auto best = std::min_element(losses.begin(), losses.end(),
                                     [](const auto& one, const auto& two) { return one.second < two.second; });
  // Rates around the best whose losses are within a tenth of what there is to gain.
  const double near = best->second + 0.1 * (untrained_loss(group, best->second) - best->second);
  auto from = best, to = best;
  while (from != losses.begin() && (from - 1)->second <= near) --from;
  while (to + 1 != losses.end() && (to + 1)->second <= near) ++to;
  std::string text = fmt::format("{}{}the loss is lowest at a rate of {:g}: {:.4g}", group.others,
                                 group.others.empty() ? "" : ": ", best->first, best->second);
  if (from != to) text += fmt::format("; from {:g} to {:g} it is nearly as low", from->first, to->first);
  if (best == losses.begin()) text += "; lower rates may be better still";
  if (best + 1 == losses.end()) {
    text += group.failed.upper_bound(best->first) != group.failed.end() ? "; the next higher one fails"
                                                                        : "; higher rates may be better still";
  }
  return text + "\n";
}

}  // namespace

void add_words_of_rate_search(std::vector<std::string>& words, const Graph& graph, const SweepOptions& options) {
  const Node* train = graph.find_op(op::Train);
  if (!train) throw GraphError(fmt::format("graph '{}' has no arbalest.Train node; --find-lr needs one", graph.name));
  if (string_attribute(*train, "schedule") == "onecycle") {
    fail(*train, "schedule \"onecycle\" rises from a fraction of the rate; --find-lr needs one that begins with it");
  }
  // The schedule becomes so long that the rate stays what it is at first.
  for (const char* constant : {"train.epochs=1000000", "train.warmup=0"}) {
    words.insert(words.end(), {"--set", constant});
  }
  if (!options.session.length.iterations && !options.session.length.epochs) {
    words.push_back(fmt::format("--iterations={}", kIterations));
  }
}

bool is_rate(const std::string& setting) {
  return setting.ends_with(".lr");
}

std::string rate_advice(const SweepRecord& record) {
  std::string text;
  for (const RateLosses& group : losses_of(record)) text += advice(group);
  return text;
}

std::string rate_plot(const SweepRecord& record) {
  LinePlot plot;
  const std::vector<RateLosses> groups = losses_of(record);
  double top = 0;  // greater losses would flatten all others
  for (const RateLosses& group : groups) top = std::max(top, kTop * untrained_loss(group, 0));
  for (const RateLosses& group : groups) {
    PlotLine& line = plot.lines.emplace_back();
    line.name = group.others;
    for (const auto& [rate, loss] : group.losses) {
      const double drawn = std::min(loss, top);
      line.points.push_back({std::log10(rate), drawn, drawn, drawn});
    }
  }
  if (plot.lines.empty()) return "";
  plot.title = fmt::format("{}: loss after short trainings", record.plan.title);
  plot.x_label = "log10 of the learning rate";
  plot.y_label = fmt::format("loss, at most {:.3g}", top);
  return svg_of(plot);
}

}  // namespace arbalest
