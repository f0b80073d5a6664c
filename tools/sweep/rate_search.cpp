// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/rate_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "graph/op.h"
#include "tools/report/line_plot.h"
#include "tools/sweep/leaderboard.h"

namespace arbalest {
namespace {

constexpr int64_t kIterations = 200;

// Rate and loss of each trial that has one, by rate. The rate is the setting whose name ends in ".lr".
std::vector<std::pair<double, double>> losses_of(const SweepRecord& record) {
  std::vector<std::pair<double, double>> losses;
  for (int trial = 0; trial < int(record.plan.trials.size()); ++trial) {
    const SweepResult* result = last_result(record, trial);
    if (!result || !result->error.empty() || !result->loss || !std::isfinite(*result->loss)) continue;
    for (const auto& [name, value] : record.plan.trials[size_t(trial)]) {
      if (name.ends_with(".lr")) losses.emplace_back(std::atof(value.c_str()), *result->loss);
    }
  }
  std::sort(losses.begin(), losses.end());
  return losses;
}

}  // namespace

void add_words_of_rate_search(std::vector<std::string>& words, const Graph& graph, const SweepOptions& options) {
  const Node* train = graph.find_op("arbalest.Train");
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

std::string rate_advice(const SweepRecord& record) {
  const auto losses = losses_of(record);
  if (losses.empty()) return "";
  const auto best = std::min_element(losses.begin(), losses.end(),
                                     [](const auto& one, const auto& two) { return one.second < two.second; });
  const auto worst = std::max_element(losses.begin(), losses.end(),
                                      [](const auto& one, const auto& two) { return one.second < two.second; });
  // Rates around the best whose losses are within a tenth of what there is to gain.
  const double near = best->second + 0.1 * (worst->second - best->second);
  auto from = best, to = best;
  while (from != losses.begin() && (from - 1)->second <= near) --from;
  while (to + 1 != losses.end() && (to + 1)->second <= near) ++to;
  std::string text = fmt::format("the loss is lowest at a rate of {:g}: {:.4g}", best->first, best->second);
  if (from != to) text += fmt::format("; from {:g} to {:g} it is nearly as low", from->first, to->first);
  if (best == losses.begin()) text += "; lower rates may be better still";
  const bool diverged = std::any_of(record.results.begin(), record.results.end(),
                                    [](const SweepResult& result) { return !result.error.empty(); });
  if (best + 1 == losses.end()) text += diverged ? "; the next higher one fails" : "; higher rates may be better still";
  return text + "\n";
}

std::string rate_plot(const SweepRecord& record) {
  PlotLine line;
  for (const auto& [rate, loss] : losses_of(record)) line.points.push_back({std::log10(rate), loss, loss, loss});
  if (line.points.empty() || record.plan.trials.front().size() > 1) return "";
  LinePlot plot;
  plot.title = fmt::format("{}: loss after short trainings", record.plan.title);
  plot.x_label = "log10 of the learning rate";
  plot.y_label = "loss";
  plot.lines = {std::move(line)};
  return svg_of(plot);
}

}  // namespace arbalest
