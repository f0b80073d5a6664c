// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/leaderboard.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/number.h"

namespace arbalest {
namespace {

TrialSettings without_repetitions(const TrialSettings& settings) {
  TrialSettings kept;
  for (const auto& setting : settings) {
    if (!is_repetition(setting.first)) kept.push_back(setting);
  }
  return kept;
}

double mean_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
}

std::string number_text(double value) {
  return fmt::format("{:.5g}", value);
}

std::optional<double> deviation_of(const std::vector<double>& values) {
  if (values.size() < 2) return std::nullopt;
  const double mean = mean_of(values);
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / double(values.size() - 1));
}

TableValue value_of(const TrialGroup& group) {
  if (!group.mean) return {group.failed > 0 ? "failed" : "–"};
  std::string text = number_text(*group.mean);
  if (group.interval) text += fmt::format(" ± {:.2g}", group.interval->high - *group.mean);
  if (group.deviation) text += fmt::format(" ± {:.2g}", *group.deviation);
  return {text, group.mean, group.interval};
}

// Settings that some trials have another value of, in the order of the sweep.
std::vector<std::string> varied_names(const SweepPlan& plan) {
  std::vector<std::string> names;
  for (const auto& [name, value] : plan.trials.front()) {
    const bool varies = std::any_of(plan.trials.begin(), plan.trials.end(), [&](const TrialSettings& settings) {
      return std::find(settings.begin(), settings.end(), std::pair(name, value)) == settings.end();
    });
    if (varies) names.push_back(name);
  }
  return names;
}

std::string setting_of(const TrialGroup& group, const std::string& name) {
  const auto found =
      std::find_if(group.settings.begin(), group.settings.end(), [&](const auto& each) { return each.first == name; });
  return found == group.settings.end() ? "" : found->second;
}

// The mean of all groups that have a value of the setting, or values of settings that change together, for each of
// these: what it does on the whole. Its trials differ in other settings too and share folds, so that no interval
// follows from them.
ResultTable effect_of(const SettingNames& names, const Leaderboard& board) {
  ResultTable table;
  table.title = fmt::format("{} by {}", board.metric, fmt::join(names, "+"));
  for (const std::string& name : names) table.columns.push_back({name, false});
  table.columns.insert(table.columns.end(), {{board.metric}, {"trials"}});
  using Setting = std::vector<std::string>;
  std::vector<Setting> order;
  std::map<Setting, std::vector<double>> values;
  for (const TrialGroup& group : board.groups) {
    Setting setting;
    for (const std::string& name : names) setting.push_back(setting_of(group, name));
    if (!values.contains(setting)) order.push_back(setting);
    auto& of_value = values[setting];
    of_value.insert(of_value.end(), group.values.begin(), group.values.end());
  }
  std::stable_sort(order.begin(), order.end(), [&](const Setting& one, const Setting& two) {
    const auto first = finite_number(one.front()), second = finite_number(two.front());
    return first && second && *first < *second;
  });
  for (const Setting& setting : order) {
    const std::vector<double>& of_value = values[setting];
    TableValue mean =
        of_value.empty() ? TableValue{"–"} : TableValue{number_text(mean_of(of_value)), mean_of(of_value)};
    std::vector<TableValue>& row = table.rows.emplace_back(setting.begin(), setting.end());
    row.push_back(std::move(mean));
    row.push_back({std::to_string(of_value.size()), double(of_value.size())});
  }
  return table;
}

// The last result of each trial; nullptr if there is none.
std::vector<const SweepResult*> last_results(const SweepRecord& record) {
  std::vector<const SweepResult*> last(record.plan.trials.size());
  for (const SweepResult& result : record.results) last[size_t(result.job.trial)] = &result;
  return last;
}

// "3 (1 failed, 1 not ended)", or of a search "5 (2 to epoch 4)".
std::string trials_text(const TrialGroup& group, const std::vector<const SweepResult*>& last, bool searched) {
  std::vector<std::string> others;
  if (group.failed > 0) others.push_back(fmt::format("{} failed", group.failed));
  const auto left = std::count_if(group.trials.begin(), group.trials.end(),
                                  [&](int trial) { return last[size_t(trial)] == nullptr; });
  if (left > 0) others.push_back(fmt::format("{} not ended", left));
  const auto furthest = std::count_if(group.trials.begin(), group.trials.end(), [&](int trial) {
    return last[size_t(trial)] != nullptr && last[size_t(trial)]->epochs == group.epochs;
  });
  if (searched && group.mean && furthest < std::ptrdiff_t(group.trials.size()))
    others.push_back(fmt::format("{} to epoch {}", furthest, group.epochs));
  const std::string all = std::to_string(group.trials.size());
  return others.empty() ? all : fmt::format("{} ({})", all, fmt::join(others, ", "));
}

// Why trials are ranked by another metric; those that failed, with the reason of the first; and how far a search has
// trained its trials.
void add_notes(const SweepRecord& record, const Leaderboard& board, ResultTable& table) {
  if (!board.why.empty()) table.notes.push_back(board.why);
  std::vector<int> failed;
  std::string why;
  int64_t epochs = 0;
  for (int trial = 0; trial < int(record.plan.trials.size()); ++trial) {
    const SweepResult* result = last_result(record, trial);
    if (!result) continue;
    epochs += result->epochs;
    if (result->error.empty()) continue;
    failed.push_back(trial + 1);
    if (why.empty()) why = result->error.substr(0, result->error.find('\n'));
  }
  constexpr size_t kMost = 10;
  if (!failed.empty() && !record.plan.finds_rate) {
    const std::vector<int> shown(failed.begin(), failed.begin() + std::ptrdiff_t(std::min(failed.size(), kMost)));
    table.notes.push_back(fmt::format("failed: trial{} {}{}; {}{}", failed.size() == 1 ? "" : "s",
                                      fmt::join(shown, ", "), failed.size() > kMost ? ", …" : "",
                                      failed.size() == 1 ? "" : "the first: ", why));
  }
  if (record.plan.halving) {
    table.notes.push_back(fmt::format("{} epochs were trained, of {} that all trials would take", epochs,
                                      record.plan.halving->epochs.back() * int64_t(record.plan.trials.size())));
  }
}

}  // namespace

std::vector<int> groups_of_trials(const SweepPlan& plan) {
  std::vector<TrialSettings> seen;
  std::vector<int> groups;
  for (const TrialSettings& settings : plan.trials) {
    const TrialSettings own = without_repetitions(settings);
    const auto found = std::find(seen.begin(), seen.end(), own);
    groups.push_back(int(found - seen.begin()));
    if (found == seen.end()) seen.push_back(own);
  }
  return groups;
}

const SweepResult* last_result(const SweepRecord& record, int trial) {
  const auto found = std::find_if(record.results.rbegin(), record.results.rend(),
                                  [&](const SweepResult& result) { return result.job.trial == trial; });
  return found == record.results.rend() ? nullptr : &*found;
}

std::vector<int> ranked_trials(const SweepRecord& of_runs) {
  const SweepRecord record = as_ranked(of_runs);
  const std::vector<const SweepResult*> last = last_results(record);
  std::vector<int> ranked;
  for (size_t trial = 0; trial < last.size(); ++trial) {
    if (last[trial] && last[trial]->error.empty()) ranked.push_back(int(trial));
  }
  std::stable_sort(ranked.begin(), ranked.end(), [&](int one, int two) {
    const SweepResult &first = *last[size_t(one)], &second = *last[size_t(two)];
    if (first.score().has_value() != second.score().has_value()) return first.score().has_value();
    if (!first.score()) return false;
    if (record.plan.halving && first.epochs != second.epochs) return first.epochs > second.epochs;
    return *first.score() > *second.score();
  });
  return ranked;
}

SweepRecord as_ranked(SweepRecord record) {
  const auto good = [](const SweepResult& result) { return result.error.empty(); };
  const auto lacks_value = [&](const SweepResult& result) {
    return !good(result) || (!result.validated && !result.value && result.loss);
  };
  const auto& all = record.results;
  if (std::none_of(all.begin(), all.end(), good) || !std::all_of(all.begin(), all.end(), lacks_value)) return record;
  for (SweepResult& result : record.results) {
    if (good(result)) result.value = result.loss;
    result.metric = "loss";
    result.lower = true;
  }
  return record;
}

size_t ended_trials(const SweepRecord& record, const std::set<int>& under_way) {
  std::set<int> ended;
  for (const SweepResult& result : record.results) ended.insert(result.job.trial);
  for (const int trial : under_way) ended.erase(trial);
  return ended.size();
}

std::vector<const TrialGroup*> ranked_whole_groups(const Leaderboard& board, const SweepRecord& record) {
  std::vector<const TrialGroup*> whole;
  for (const TrialGroup& group : board.groups) {
    const bool ended = std::all_of(group.trials.begin(), group.trials.end(),
                                   [&](int trial) { return last_result(record, trial) != nullptr; });
    if (ended && group.failed == 0) whole.push_back(&group);
  }
  return whole;
}

Leaderboard leaderboard_of(const SweepRecord& of_runs) {
  Leaderboard board;
  const SweepRecord record = as_ranked(of_runs);
  const std::vector<const SweepResult*> last = last_results(record);
  std::map<TrialSettings, size_t> places;
  for (size_t t = 0; t < record.plan.trials.size(); ++t) {
    const TrialSettings settings = without_repetitions(record.plan.trials[t]);
    const auto [place, added] = places.emplace(settings, board.groups.size());
    if (added) board.groups.push_back({.settings = settings});
    TrialGroup* group = &board.groups[place->second];
    group->trials.push_back(int(t));
    const SweepResult* result = last[t];
    if (!result) continue;
    ++(result->error.empty() ? board.done : board.failed);
    if (!result->error.empty()) ++group->failed;
    if (result->metric != of_runs.results[size_t(result - record.results.data())].metric) {
      board.why = "ranked by the loss of training, since no trial has come to its first validation";
    }
    board.in_iterations = board.in_iterations || result->ended_within_epoch();
    group->iterations = std::max(group->iterations, result->iterations);
    if (board.metric.empty()) board.metric = result->metric;
    board.lower = result->metric.empty() ? board.lower : result->lower;
    if (!result->score()) continue;
    // Trials of a search that trained less far are no measure of the group.
    if (record.plan.halving && result->epochs < group->epochs) continue;
    if (record.plan.halving && result->epochs > group->epochs) {
      group->values.clear();
      group->results.clear();
    }
    group->values.push_back(*result->value);
    group->results.push_back(size_t(result - record.results.data()));
    group->epochs = std::max(group->epochs, result->epochs);
  }
  for (TrialGroup& group : board.groups) {
    if (group.values.empty()) {
      for (const int trial : group.trials) {
        if (const SweepResult* result = last_result(record, trial))
          group.epochs = std::max(group.epochs, result->epochs);
      }
      continue;
    }
    group.mean = mean_of(group.values);
    if (record.plan.fold.empty()) {
      group.interval = mean_interval(group.values);
    } else {
      group.deviation = deviation_of(group.values);
    }
  }
  const auto before = [&](const TrialGroup& one, const TrialGroup& two) {
    if (one.mean.has_value() != two.mean.has_value()) return one.mean.has_value();
    if (!one.mean) return false;
    if ((one.failed > 0) != (two.failed > 0)) return two.failed > 0;
    if (record.plan.halving && one.epochs != two.epochs) return one.epochs > two.epochs;
    return board.lower ? *one.mean < *two.mean : *one.mean > *two.mean;
  };
  std::stable_sort(board.groups.begin(), board.groups.end(), before);
  return board;
}

SweepRecord at_first_rung(SweepRecord record) {
  if (record.plan.halving) std::erase_if(record.results, [](const SweepResult& result) { return result.job.rung > 0; });
  return record;
}

std::vector<ResultTable> tables_of(const Leaderboard& board, const SweepRecord& record) {
  const std::vector<std::string> names = varied_names(record.plan);
  const bool several = std::any_of(board.groups.begin(), board.groups.end(),
                                   [](const TrialGroup& group) { return group.trials.size() > 1; });
  ResultTable table;
  table.title =
      fmt::format("{}: {} of {} trials{}", record.plan.title, board.done + board.failed, record.plan.trials.size(),
                  board.failed > 0 ? fmt::format(", {} failed", board.failed) : "");
  table.columns = {{"place"}};
  std::vector<std::string> shown;
  for (const std::string& name : names) {
    if (!is_repetition(name)) shown.push_back(name);
  }
  for (const std::string& name : shown) table.columns.push_back({name, false});
  table.columns.push_back({board.metric.empty() ? "value" : board.metric, true, true});
  table.columns.push_back({several ? "trials" : "trial"});
  table.columns.push_back({board.in_iterations ? "iterations" : "epochs"});
  int place = 0;
  const std::vector<const SweepResult*> last = last_results(record);
  for (const TrialGroup& group : board.groups) {
    std::vector<TableValue> row = {{std::to_string(++place), double(place)}};
    for (const std::string& name : shown) {
      row.push_back({setting_of(group, name)});
    }
    row.push_back(value_of(group));
    row.push_back({several ? trials_text(group, last, record.plan.halving.has_value())
                           : std::to_string(group.trials.front() + 1)});
    const int64_t length = board.in_iterations ? group.iterations : group.epochs;
    row.push_back({std::to_string(length), double(length)});
    table.rows.push_back(std::move(row));
  }
  const bool spread = std::any_of(board.groups.begin(), board.groups.end(),
                                  [](const TrialGroup& group) { return group.interval || group.deviation; });
  if (spread) {
    table.notes.push_back(record.plan.fold.empty()
                              ? "± is the interval of 95 % of the mean, by Student's distribution."
                              : "± is the standard deviation of trials, of which each has held out another fold.");
  }
  add_notes(record, board, table);
  std::vector<ResultTable> tables = {std::move(table)};
  const Leaderboard equal = record.plan.halving ? leaderboard_of(at_first_rung(record)) : board;
  const std::vector<SettingNames> joined = joined_names(shown, record.plan.together);
  for (const SettingNames& each : joined) {
    if (joined.size() < 2 || equal.metric.empty()) continue;
    ResultTable effect = effect_of(each, equal);
    if (record.plan.halving) effect.title += fmt::format(", all after epoch {}", record.plan.halving->epochs.front());
    // Values that no two groups share, as drawn ones are, say nothing beyond the groups.
    if (effect.rows.size() < board.groups.size()) tables.push_back(std::move(effect));
  }
  return tables;
}

}  // namespace arbalest
