// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/sweep_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "tools/watch/json_lines.h"

namespace arbalest {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const std::optional<double>& number) {
  return number ? Json(*number) : Json();
}

std::optional<double> logged_number(const Json& line, const char* key) {
  const auto found = line.find(key);
  return found == line.end() || found->is_null() ? std::nullopt : std::optional(found->get<double>());
}

Json json_of(const SweepPlan& plan) {
  Json trials = Json::array();
  for (size_t t = 0; t < plan.trials.size(); ++t) {
    Json settings = Json::object();
    for (const auto& [name, value] : plan.trials[t]) settings[name] = value;
    trials.push_back({{"trial", t + 1}, {"settings", std::move(settings)}});
  }
  Json line = {{"event", "sweep"},
               {"graph", plan.title},
               {"command", plan.command},
               {"directory", plan.directory},
               {"words", plan.words}};
  if (plan.finds_rate) line["finds_rate"] = true;
  if (!plan.fold.empty()) line["fold"] = plan.fold;
  if (!plan.together.empty()) line["together"] = plan.together;
  if (plan.halving) {
    const HalvingRule& rule = *plan.halving;
    line["halving"] = {{"epochs", rule.epochs}, {"reduction", rule.reduction}, {"lanes", rule.lanes}};
  }
  line["inputs"] = plan.inputs;
  line["trials"] = std::move(trials);
  return line;
}

SweepPlan plan_of(const Json& line) {
  SweepPlan plan;
  plan.title = line.at("graph").get<std::string>();
  plan.command = line.value("command", std::vector<std::string>());
  plan.directory = line.value("directory", "");
  plan.words = line.at("words").get<std::vector<std::string>>();
  plan.finds_rate = line.value("finds_rate", false);
  plan.fold = line.value("fold", "");
  plan.together = line.value("together", plan.together);
  plan.inputs = line.value("inputs", std::map<std::string, std::string>());
  if (const auto found = line.find("halving"); found != line.end()) {
    plan.halving = HalvingRule{found->at("epochs").get<std::vector<int64_t>>(), found->at("reduction").get<int>(),
                               found->at("lanes").get<int>()};
  }
  for (const Json& trial : line.at("trials")) {
    TrialSettings settings;
    for (const auto& [name, value] : trial.at("settings").items()) {
      settings.emplace_back(name, value.get<std::string>());
    }
    plan.trials.push_back(std::move(settings));
  }
  return plan;
}

SweepResult result_of(const Json& line) {
  SweepResult result;
  result.job = {line.at("trial").get<int>() - 1, line.at("rung").get<int>(), line.at("to_epoch").get<int64_t>()};
  result.error = line.value("error", "");
  result.metric = line.value("metric", "");
  result.lower = line.value("better", "higher") == "lower";
  result.value = logged_number(line, "value");
  result.epoch = line.value("epoch", int64_t{0});
  result.loss = logged_number(line, "loss");
  result.validated = line.value("validated", false);
  result.epochs = line.value("epochs", int64_t{0});
  result.iterations = line.value("iterations", int64_t{0});
  result.per_epoch = line.value("iterations_per_epoch", int64_t{0});
  result.seconds = line.value("seconds", 0.0);
  result.images_per_second = line.value("images_per_second", 0.0);
  result.end = line.value("end", "");
  return result;
}

// The words in an order of their own. Those of one setting, "--set=train.lr=0.1", stay as they are: the last one holds.
std::vector<std::string> by_setting(std::vector<std::string> words) {
  const auto setting = [](const std::string& word) { return word.substr(0, word.find('=', word.find('=') + 1)); };
  std::stable_sort(words.begin(), words.end(),
                   [&](const std::string& one, const std::string& two) { return setting(one) < setting(two); });
  return words;
}

}  // namespace

bool SweepPlan::has_words_of(const SweepPlan& other) const {
  return by_setting(words) == by_setting(other.words);
}

bool SweepPlan::operator==(const SweepPlan& other) const {
  const auto same = [](const HalvingRule& one, const HalvingRule& two) {
    return one.epochs == two.epochs && one.reduction == two.reduction && one.lanes == two.lanes;
  };
  const bool alike = halving && other.halving ? same(*halving, *other.halving) : !halving && !other.halving;
  return alike && has_words_of(other) && trials == other.trials && finds_rate == other.finds_rate && fold == other.fold;
}

std::optional<double> SweepResult::score() const {
  if (!error.empty() || !value || std::isnan(*value)) return std::nullopt;
  return lower ? -*value : *value;
}

std::string sweep_log_path(const std::string& folder) {
  return (std::filesystem::path(folder) / "sweep.jsonl").string();
}

std::string trial_folder(const std::string& folder, int trial) {
  return (std::filesystem::path(folder) / fmt::format("trial-{:03}", trial + 1)).string();
}

SweepRecord read_sweep_log(const std::string& path) {
  SweepRecord record;
  record.faults = read_json_lines(path, [&](const Json& line) {
                    const std::string event = line.at("event").get<std::string>();
                    const bool begun = !record.plan.trials.empty();
                    if (!begun && event != "sweep") throw RunError("expected the event 'sweep'");
                    if (event == "sweep") record.plan = plan_of(line);
                    if (event == "result") {
                      SweepResult result = result_of(line);
                      const int trial = result.job.trial, all = int(record.plan.trials.size());
                      if (trial < 0 || trial >= all) {
                        throw RunError(fmt::format("trial: found {}, expected 1 to {}", trial + 1, all));
                      }
                      record.results.push_back(std::move(result));
                    }
                    record.finished = event == "finished";
                  }).faults;
  if (!record.plan.trials.empty()) return record;
  throw RunError(record.faults.empty() ? fmt::format("{}: holds no sweep", path) : record.faults.front());
}

SweepLog::SweepLog(const std::string& folder, const SweepPlan& plan, bool goes_on)
    : file_(sweep_log_path(folder), "log") {
  if (goes_on) {
    // A last line that was cut short.
    file_.cut(std::max<int64_t>(0, end_of_line(sweep_log_path(folder), [](const std::string&) { return true; })));
  } else {
    file_.write(json_of(plan).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  }
}

void SweepLog::started(const SweepJob& job, int lane, const std::string& device) {
  Json line = {{"event", "started"},     {"trial", job.trial + 1}, {"rung", job.rung},
               {"to_epoch", job.epochs}, {"lane", lane + 1},       {"device", device}};
  if (job.judged > 0) line["promoted"] = {{"place", job.place}, {"of", job.judged}};
  file_.write(line.dump() + "\n");
}

void SweepLog::result(const SweepResult& result) {
  Json line = {
      {"event", "result"}, {"trial", result.job.trial + 1}, {"rung", result.job.rung}, {"to_epoch", result.job.epochs}};
  if (!result.error.empty()) line["error"] = result.error;
  line["metric"] = result.metric;
  line["better"] = result.lower ? "lower" : "higher";
  line["value"] = json_of(result.value);
  line["epoch"] = result.epoch;
  line["loss"] = json_of(result.loss);
  line["validated"] = result.validated;
  line["epochs"] = result.epochs;
  line["iterations"] = result.iterations;
  line["iterations_per_epoch"] = result.per_epoch;
  line["seconds"] = result.seconds;
  line["images_per_second"] = result.images_per_second;
  line["end"] = result.end;
  file_.write(line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

void SweepLog::lanes(int left, const std::string& why) {
  const Json line = {{"event", "lanes"}, {"left", left}, {"reason", why}};
  file_.write(line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

void SweepLog::finished(double seconds) {
  file_.write(Json({{"event", "finished"}, {"seconds", seconds}}).dump() + "\n");
}

}  // namespace arbalest
