// SPDX-License-Identifier: Apache-2.0
#include "tools/experiment/trials/trials.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>
#include <tuple>

#include "base/error.h"
#include "base/number.h"
#include "tools/experiment/cells/expression.h"
#include "tools/experiment/trials/run_trial.h"

namespace arbalest {
namespace {

using nlohmann::json;

constexpr double kSettled = 0.05;  // by which the rates of consecutive windows agree once a run is warm

std::vector<std::string> peer_words(const BenchFile& file, const BenchCell& cell, Measure measure,
                                    const std::string& seed) {
  const auto peer =
      std::find_if(file.peers.begin(), file.peers.end(), [&](const Peer& each) { return each.name == cell.peer; });
  Settings settings = cell.settings;
  settings["seed"] = seed;
  settings["measure"] = name_of(measure);
  return {"/bin/sh", "-c", fill_in(peer->command, settings, peer->where)};
}

std::string key_of(const Trial& trial) {
  const Identity& identity = trial.identity;
  return hash_of(fmt::format("{}\n{}\n{}\n{}\n{}\n{}", name_of(trial.measure), identity.graph, identity.options,
                             identity.build, identity.devices, trial.repetition));
}

void add_trials(const BenchFile& file, const BenchCell& cell, Measure measure, const IdentityOf& identity_of,
                std::vector<Trial>& trials) {
  std::vector<int64_t> repetitions;
  if (measure == Measure::Accuracy) {
    repetitions = file.accuracy->seeds;
  } else {
    for (int64_t r = 0; r < file.throughput->repetitions; ++r) repetitions.push_back(r);
  }
  const std::vector<std::string> words = cell_words(file, cell, measure);
  Trial trial{&cell, measure, 0, words, identity_of(cell, words), ""};
  if (measure == Measure::Accuracy && cell.peer.empty()) trial.identity.options += "metric " + file.accuracy->metric;
  // The same command on another machine has another result.
  if (const std::string machine = setting_of(cell.settings, "machine"); !machine.empty()) {
    trial.identity.options += " machine " + machine;
  }
  for (const int64_t repetition : repetitions) {
    trial.repetition = repetition;
    trial.words = words;
    const std::string seed = std::to_string(measure == Measure::Accuracy ? repetition : 1);
    if (!cell.peer.empty()) {
      trial.words = peer_words(file, cell, measure, seed);
    } else if (measure == Measure::Accuracy) {
      trial.words.insert(trial.words.end(), {"--seed", seed});
    }
    trial.key = key_of(trial);
    trials.push_back(trial);
  }
}

// The objects among the lines of a text; a peer may print other lines, and a log may be cut off.
std::vector<json> objects_in(const std::string& text) {
  std::vector<json> objects;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    json object = json::parse(line, nullptr, false);
    if (object.is_object()) objects.push_back(std::move(object));
  }
  return objects;
}

std::optional<double> event_number(const json& object, const std::string& key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}

// The targets that another program has met, as "time_to" says, the earliest first.
std::vector<CurvePoint> times_in(const json& object) {
  std::vector<CurvePoint> points;
  const json times = object.value("time_to", json::object());
  for (const auto& [target, time] : times.items()) {
    const auto value = read_number<double>(target);
    if (!value) throw RunError(fmt::format("\"time_to\": found '{}', expected a number, as in \"0.99\"", target));
    if (time.is_number()) points.push_back({0, time, *value});
  }
  std::sort(points.begin(), points.end(),
            [](const CurvePoint& a, const CurvePoint& b) { return a.seconds < b.seconds; });
  return points;
}

}  // namespace

std::string Trial::name() const {
  return fmt::format("{}: {} {}", cell->name, measure == Measure::Accuracy ? "seed" : "repetition",
                     measure == Measure::Accuracy ? repetition : repetition + 1);
}

std::vector<std::string> scaling_words(const Settings& settings) {
  std::vector<std::string> words = words_of(settings, false);
  words.insert(words.begin(), {"bench", "scaling"});
  return words;
}

std::vector<std::string> cell_words(const BenchFile& file, const BenchCell& cell, Measure measure) {
  if (!cell.peer.empty()) return peer_words(file, cell, measure, "1");
  if (measure == Measure::Accuracy) {
    std::vector<std::string> words = words_of(cell.settings, true);
    words.insert(words.begin(), "run");
    return words;
  }
  std::vector<std::string> words = scaling_words(cell.settings);
  const ThroughputRule& rule = *file.throughput;
  words.insert(words.end(),
               {"--windows", std::to_string(rule.windows), "--window-seconds", text_of(rule.window_seconds),
                "--warmup-seconds", text_of(rule.warmup_seconds), "--settled", text_of(kSettled), "--json"});
  return words;
}

std::vector<Trial> trials_of(const BenchFile& file, const BenchCells& cells, const IdentityOf& identity_of) {
  std::vector<Trial> trials;
  for (const BenchCell& cell : cells.cells) {
    if (file.throughput) add_trials(file, cell, Measure::Throughput, identity_of, trials);
    if (file.accuracy) add_trials(file, cell, Measure::Accuracy, identity_of, trials);
  }
  std::stable_sort(trials.begin(), trials.end(), [](const Trial& a, const Trial& b) {
    return std::tie(a.measure, a.repetition, a.key) < std::tie(b.measure, b.repetition, b.key);
  });
  return trials;
}

TrialResult result_for(const Trial& trial) {
  TrialResult result;
  result.key = trial.key;
  result.cell = trial.cell->id;
  result.name = trial.cell->name;
  result.settings = trial.cell->settings;
  result.measure = trial.measure;
  result.repetition = trial.repetition;
  result.identity = trial.identity;
  return result;
}

std::string last_line(const std::string& text) {
  constexpr std::string_view kName = "arbalest: ";
  const size_t end = text.find_last_not_of(" \n\r");
  if (end == text.npos) return "";
  const size_t before = text.find_last_of("\n\r", end);
  const size_t begin = before == text.npos ? 0 : before + 1;
  const std::string line = text.substr(begin, end - begin + 1);
  return line.starts_with(kName) ? line.substr(kName.size()) : line;
}

std::string error_in(const std::string& output) {
  for (const json& object : objects_in(output)) {
    if (object.value("event", "") == "cell" && object.contains("error")) return object.at("error");
  }
  return "";
}

void read_throughput(const std::string& output, TrialResult& result) {
  for (const json& object : objects_in(output)) {
    if (object.value("event", "") != "cell") continue;
    if (object.contains("error")) {
      result.error = object.at("error");
      return;
    }
    object.at("images_per_second").get_to(result.images_per_second);
    object.at("window_images_per_second").get_to(result.windows);
    object.at("planned_peak_bytes").get_to(result.peak_bytes);
    result.taken_bytes = object.value("taken_bytes", int64_t{-1});
    object.at("setup_seconds").get_to(result.setup_seconds);
    object.at("warmup_seconds").get_to(result.warmup_seconds);
    result.settled = object.value("settled", true);
    result.joules_per_image = object.value("joules_per_image", 0.0);
    result.late_batches = object.value("late_batches", -1.0);
    result.gpu_busy = object.value("gpu_busy", -1.0);
    for (const json& fault : object.value("held_back", json::array())) {
      result.state["faults"].push_back(fault.get<std::string>());
    }
    return;
  }
  throw RunError("its output has no result");
}

void read_training(const std::string& log, const AccuracyRule& rule, TrialResult& result) {
  bool ended = false, resumed = false;
  for (const json& event : objects_in(log)) {
    const std::string kind = event.value("event", "");
    if (kind == "start" || kind == "resume") {
      // A run that goes on is set up again, which is no part of training.
      resumed = kind == "resume";
      ended = false;
      if (resumed) result.joules = result.command_seconds = 0;  // a part of it was not counted
      if (!resumed) result.setup_seconds = event_number(event, "setup_seconds").value_or(0);
      result.peak_bytes = event.value("planned_peak_bytes", int64_t{0});
    } else if (kind == "kept" && !resumed) {  // samples that were read into a cache before training began
      result.setup_seconds += event_number(event, "seconds").value_or(0);
    } else if (kind == "validation") {
      const auto value = event_number(event, rule.metric);
      if (!value) continue;
      result.curve.push_back({event.value("epoch", 0.0), event.value("seconds", 0.0), *value});
    } else if (kind == "end") {
      ended = true;
      if (!resumed) result.setup_seconds = event_number(event, "setup_seconds").value_or(result.setup_seconds);
      result.taken_bytes = event.value("taken_bytes", int64_t{-1});
      result.late_batches = event_number(event, "late_batches").value_or(-1);
      result.seconds = event.value("seconds", 0.0);
      result.epochs = event.value("epoch", 0.0);
      result.images_per_second = event.value("images_per_second", 0.0);
    }
  }
  if (!ended) throw RunError("its log has no end");
  if (result.curve.empty()) throw RunError(fmt::format("its log has no validation with '{}'", rule.metric));
}

void read_peer(const std::string& output, double seconds, const std::optional<AccuracyRule>& rule,
               TrialResult& result) {
  const bool training = result.measure == Measure::Accuracy;
  const char* const needed = training ? "final" : "images_per_second";
  bool found = false;
  for (const json& object : objects_in(output)) {
    const auto rate = event_number(object, "images_per_second");
    result.images_per_second = (rate ? rate : event_number(object, "img_s")).value_or(result.images_per_second);
    if (!training) {
      found = found || result.images_per_second > 0;
      continue;
    }
    const auto last = event_number(object, "final");
    if (!last) continue;
    found = true;
    result.curve.clear();
    result.setup_seconds = event_number(object, "setup_seconds").value_or(0);
    result.curve = times_in(object);
    // Without a time of its own it has trained as long as its process ran, and at least until it met the last target.
    for (const CurvePoint& met : result.curve) seconds = std::max(seconds, met.seconds);
    result.seconds = event_number(object, "seconds").value_or(seconds);
    for (const double target : rule ? rule->targets : std::vector<double>()) {
      const bool met = rule->lower ? *last <= target : *last >= target;
      const bool told = std::any_of(result.curve.begin(), result.curve.end(),
                                    [&](const CurvePoint& point) { return point.value == target; });
      if (met && !told) {
        throw RunError(
            fmt::format("ends at {:g} and does not say when it met {:g}; expected \"time_to\": "
                        "{{\"{:g}\": SECONDS}}",
                        *last, target, target));
      }
    }
    result.curve.push_back({0, result.seconds, *last});
  }
  if (found) return;
  const bool silent = output.find_first_not_of(" \n\r") == output.npos;
  throw RunError(fmt::format("no line of its output is a JSON object with a number \"{}\"{}", needed,
                             silent ? "" : fmt::format("; the last one is '{}'", printable(last_line(output)))));
}

}  // namespace arbalest
