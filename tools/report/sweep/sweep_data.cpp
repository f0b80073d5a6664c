// SPDX-License-Identifier: Apache-2.0
#include "tools/report/sweep/sweep_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/number.h"
#include "tools/experiment/answer/statistics.h"
#include "tools/report/sweep/setting_axis.h"
#include "tools/report/sweep/trial_curves.h"
#include "tools/sweep/leaderboard.h"
#include "tools/sweep/rate_search.h"

namespace arbalest {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr size_t kMostGroupsWithCurves = 500;
constexpr size_t kMostNotes = 50;
constexpr double kStepsOfReports = 60;  // on the axis of epochs

// As many digits as a plot shows, so that pages stay small.
Json rounded(double value) {
  return std::strtod(fmt::format("{:.6g}", value).c_str(), nullptr);
}

Json rounded(const std::vector<double>& values) {
  Json list = Json::array();
  for (const double value : values) list.push_back(rounded(value));
  return list;
}

Json number_or_null(const std::optional<double>& number) {
  return number ? Json(*number) : Json();
}

const char* word_of(PlottedSetting::Scale scale) {
  return scale == PlottedSetting::Scale::Log ? "log" : scale == PlottedSetting::Scale::Linear ? "linear" : "names";
}

// The trials of several groups.
struct Pool {
  std::vector<double> values;
  int failed = 0;

  // `equal`: the group with values of trials that were trained equally far.
  void add(const TrialGroup& group, const TrialGroup& equal) {
    values.insert(values.end(), equal.values.begin(), equal.values.end());
    failed += group.failed;
  }
  bool empty() const { return values.empty() && failed == 0; }
  Json mean() const {
    if (values.empty()) return {};
    double sum = 0;
    for (const double value : values) sum += value;
    return sum / double(values.size());
  }
};

void add_interval(Json& record, const std::optional<Confidence>& interval) {
  record["low"] = interval ? Json(interval->low) : Json();
  record["high"] = interval ? Json(interval->high) : Json();
}

class SweepData {
 public:
  SweepData(const SweepRecord& record, const std::string& folder)
      : record_(as_ranked(record)),
        folder_(folder),
        board_(leaderboard_of(record)),
        first_rung_(at_first_rung(record_)),
        equal_(leaderboard_of(first_rung_)),
        axes_(setting_axes(board_, record.plan.together)),
        curves_(record.plan.trials.size()) {
    for (size_t g = 0; g < board_.groups.size(); ++g) {
      for (const int trial : board_.groups[g].trials) group_of_[trial] = g;
    }
    for (size_t g = 0; g < std::min(board_.groups.size(), kMostGroupsWithCurves); ++g) {
      for (const int trial : board_.groups[g].trials) read_log(trial);
    }
    metric_ = board_.metric;
    for (size_t trial = 0; metric_.empty() && trial < curves_.size(); ++trial) metric_ = curves_[trial].metric;
  }

  Json json() const {
    const size_t groups = board_.groups.size();
    Json data = {{"graph", record_.plan.title},
                 {"metric", metric_},
                 {"lower", board_.lower},
                 {"why", board_.why},
                 {"in_iterations", board_.in_iterations},
                 {"trials_ended", board_.done},
                 {"trials_failed", board_.failed},
                 {"finished", record_.finished},
                 {"folds", !record_.plan.fold.empty()},
                 {"rungs", record_.plan.halving ? Json(record_.plan.halving->epochs) : Json::array()},
                 {"settings", settings()},
                 {"groups", this->groups()},
                 {"trials", trials()},
                 {"pairs", pairs()},
                 {"validation", validation()},
                 {"loss", loss()},
                 {"curves_left_out", groups - std::min(groups, kMostGroupsWithCurves)},
                 {"rates", record_.plan.finds_rate ? rates() : Json::array()},
                 {"advice", record_.plan.finds_rate ? rate_advice(record_) : ""}};
    data["notes"] = std::vector<std::string>(notes_.begin(), notes_.begin() + std::min(notes_.size(), kMostNotes));
    data["notes_left_out"] = notes_.size() - std::min(notes_.size(), kMostNotes);
    return data;
  }

 private:
  std::string log_of(int trial) const { return (fs::path(trial_folder(folder_, trial)) / "log.jsonl").string(); }
  bool has_log(int trial) const {
    std::error_code unknown;
    return fs::exists(log_of(trial), unknown);
  }
  const char* state_of(int trial) const {
    const SweepResult* result = last_result(record_, trial);
    if (!result) return has_log(trial) ? "unfinished" : "waiting";
    return result->error.empty() ? "ended" : "failed";
  }

  // Whether the last line of a log has no end yet, since its trial may still run. A search goes on with trials that
  // have a result.
  bool is_being_written(int trial) const {
    if (record_.finished || (last_result(record_, trial) && !record_.plan.halving)) return false;
    std::ifstream log(log_of(trial), std::ios::binary);
    log.seekg(-1, std::ios::end);
    return log.good() && log.get() != '\n';
  }

  void read_log(int trial) {
    const std::string path = log_of(trial);
    if (!has_log(trial)) {
      // A trial that failed may not have come as far as a log.
      const SweepResult* result = last_result(record_, trial);
      if (result && result->error.empty()) note(trial, fmt::format("{}: expected its log, found no such file", path));
      return;
    }
    try {
      const std::vector<RunLog> runs = read_run_logs(path, std::to_string(trial + 1));
      for (const RunLog& run : runs) {
        for (const RunLog& fault : run["faults"]) {
          const bool last = &run == &runs.back() && &fault == &run["faults"].back();
          if (last && is_being_written(trial)) continue;
          note(trial, fmt::format("{}:{}: {}", path, fault["line"].get<size_t>(), fault["what"].get<std::string>()));
        }
      }
      curves_[size_t(trial)] = curves_of(runs);
    } catch (const std::exception& error) {
      note(trial, error.what());
    }
  }

  void note(int trial, const std::string& text) {
    notes_.push_back(printable(fmt::format("trial {}: {}", trial + 1, text)));
  }

  // The group of the leaderboard as equal_ has it.
  const TrialGroup& equal_group(size_t g) const {
    return *std::find_if(equal_.groups.begin(), equal_.groups.end(),
                         [&](const TrialGroup& each) { return each.settings == board_.groups[g].settings; });
  }

  Json settings() const {
    Json settings = Json::array();
    for (const PlottedSetting& axis : axes_) {
      std::vector<Pool> pools(axis.steps.size());
      for (size_t g = 0; g < board_.groups.size(); ++g) {
        if (axis.step[g]) pools[*axis.step[g]].add(board_.groups[g], equal_group(g));
      }
      Json means = Json::array();
      for (size_t i = 0; i < pools.size(); ++i) {
        Json mean = {{"text", axis.steps[i].text},
                     {"at", axis.steps[i].at},
                     {"mean", pools[i].mean()},
                     {"values", pools[i].values.size()},
                     {"failed", pools[i].failed}};
        // Trials of a value that differ in other settings too, and share folds, are not independent.
        const bool apart = axes_.size() == 1 && record_.plan.fold.empty();
        add_interval(mean, apart ? mean_interval(pools[i].values) : std::nullopt);
        means.push_back(std::move(mean));
      }
      settings.push_back({{"name", axis.name()}, {"scale", word_of(axis.scale)}, {"means", std::move(means)}});
    }
    return settings;
  }

  Json groups() const {
    Json groups = Json::array();
    for (size_t g = 0; g < board_.groups.size(); ++g) {
      const TrialGroup& group = board_.groups[g];
      Json texts = Json::array(), places = Json::array();
      for (const PlottedSetting& axis : axes_) {
        const auto value = axis.value_of(group);
        texts.push_back(value ? Json(*value) : Json());
        places.push_back(number_or_null(axis.at[g]));
      }
      const auto unfinished = std::count_if(group.trials.begin(), group.trials.end(),
                                            [&](int trial) { return !last_result(record_, trial); });
      Json record = {
          {"settings", std::move(texts)},  {"at", std::move(places)},        {"trials", group.trials},
          {"values", group.values.size()}, {"failed", group.failed},         {"unfinished", unfinished},
          {"epochs", group.epochs},        {"iterations", group.iterations}, {"mean", number_or_null(group.mean)}};
      add_interval(record, group.interval);
      record["deviation"] = number_or_null(group.deviation);
      groups.push_back(std::move(record));
    }
    return groups;
  }

  Json trials() const {
    Json trials = Json::array();
    for (int trial = 0; trial < int(record_.plan.trials.size()); ++trial) {
      const SweepResult* result = last_result(record_, trial);
      Json record = {{"settings", to_string(record_.plan.trials[size_t(trial)])},
                     {"group", group_of_.at(trial)},
                     {"state", state_of(trial)},
                     {"value", nullptr},
                     {"epochs", result ? result->epochs : 0},
                     {"iterations", result ? result->iterations : 0},
                     {"error", result ? result->error : ""}};
      if (result && result->error.empty()) record["value"] = number_or_null(result->value);
      const SweepResult* first = record_.plan.halving ? last_result(first_rung_, trial) : nullptr;
      if (first) record["first"] = {{"value", number_or_null(first->value)}, {"epochs", first->epochs}};
      const TrialCurves& curves = curves_[size_t(trial)];
      if (const auto found = curves.validation.find(metric_); !result && found != curves.validation.end()) {
        const auto& [epochs, value] = *found->second.rbegin();
        record["epochs"] = epochs;
        record["value"] = value;
      }
      trials.push_back(std::move(record));
    }
    return trials;
  }

  Json pairs() const {
    Json pairs = Json::array();
    for (size_t down = 0; down < axes_.size(); ++down) {
      for (size_t across = down + 1; across < axes_.size(); ++across) {
        pairs.push_back({{"down", down}, {"across", across}, {"cells", cells(axes_[down], axes_[across])}});
      }
    }
    return pairs;
  }

  Json cells(const PlottedSetting& down, const PlottedSetting& across) const {
    std::vector<std::vector<Pool>> pools(down.steps.size(), std::vector<Pool>(across.steps.size()));
    for (size_t g = 0; g < board_.groups.size(); ++g) {
      if (!down.step[g] || !across.step[g]) continue;
      pools[*down.step[g]][*across.step[g]].add(board_.groups[g], equal_group(g));
    }
    Json rows = Json::array();
    for (const auto& of_row : pools) {
      Json row = Json::array();
      for (const Pool& pool : of_row) {
        row.push_back(pool.empty()
                          ? Json()
                          : Json{{"mean", pool.mean()}, {"values", pool.values.size()}, {"failed", pool.failed}});
      }
      rows.push_back(std::move(row));
    }
    return rows;
  }

  // The curves that `curve` finds in the trials of each group (nullptr: a trial has none), as one.
  template <typename Find>
  Json folded_by_group(const Find& curve, double width) const {
    Json list = Json::array();
    for (size_t g = 0; g < board_.groups.size(); ++g) {
      std::vector<const TrialCurve*> curves;
      for (const int trial : board_.groups[g].trials) {
        const TrialCurve* found = curve(curves_[size_t(trial)]);
        if (found && !found->empty()) curves.push_back(found);
      }
      if (curves.empty()) continue;
      const FoldedCurve fold = folded(curves, width);
      Json record = {{"group", g}, {"epochs", rounded(fold.epochs)}, {"mean", rounded(fold.mean)}};
      if (*std::max_element(fold.count.begin(), fold.count.end()) > 1) {
        record["low"] = rounded(fold.low);
        record["high"] = rounded(fold.high);
        record["count"] = fold.count;
      }
      list.push_back(std::move(record));
    }
    return list;
  }

  Json validation() const {
    const auto of_metric = [this](const TrialCurves& curves) -> const TrialCurve* {
      const auto found = curves.validation.find(metric_);
      return found == curves.validation.end() ? nullptr : &found->second;
    };
    return folded_by_group(of_metric, 0);
  }

  // The means of epochs, or the reports of a sweep in which no trial has two epochs.
  Json loss() const {
    double longest = 0;
    for (const TrialCurves& curves : curves_) {
      if (curves.epoch_loss.size() > 1) {
        return folded_by_group([](const TrialCurves& each) { return &each.epoch_loss; }, 0);
      }
      if (!curves.report_loss.empty()) longest = std::max(longest, curves.report_loss.rbegin()->first);
    }
    return folded_by_group([](const TrialCurves& each) { return &each.report_loss; }, longest / kStepsOfReports);
  }

  // A line for each combination of the other settings.
  Json rates() const {
    std::map<std::string, std::map<double, Json>> lines;
    for (size_t g = 0; g < board_.groups.size(); ++g) {
      TrialSettings others;
      std::optional<double> rate;
      for (const auto& setting : board_.groups[g].settings) {
        if (is_rate(setting.first))
          rate = finite_number(setting.second);
        else
          others.push_back(setting);
      }
      if (!rate || *rate <= 0) continue;
      Pool losses;
      std::string error;
      for (const int trial : board_.groups[g].trials) {
        const SweepResult* result = last_result(record_, trial);
        if (result && !result->error.empty())
          error = result->error;
        else if (result && result->loss)
          losses.values.push_back(*result->loss);
      }
      lines[to_string(others)][*rate] = {{"group", g}, {"rate", *rate}, {"loss", losses.mean()}, {"error", error}};
    }
    Json list = Json::array();
    for (const auto& [name, points] : lines) {
      Json line = {{"name", name}, {"points", Json::array()}};
      for (const auto& [rate, point] : points) line["points"].push_back(point);
      list.push_back(std::move(line));
    }
    return list;
  }

  const SweepRecord record_;
  const std::string folder_;
  const Leaderboard board_;
  const SweepRecord first_rung_;  // for what settings do
  const Leaderboard equal_;       // of that
  const std::vector<PlottedSetting> axes_;
  std::map<int, size_t> group_of_;   // by trial
  std::vector<TrialCurves> curves_;  // by trial
  std::vector<std::string> notes_;
  std::string metric_;
};

}  // namespace

Json sweep_data(const SweepRecord& record, const std::string& folder) {
  return SweepData(record, folder).json();
}

}  // namespace arbalest
