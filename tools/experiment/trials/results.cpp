// SPDX-License-Identifier: Apache-2.0
#include "tools/experiment/trials/results.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "tools/watch/json_lines.h"

namespace arbalest {
namespace {

using Json = nlohmann::ordered_json;

TrialResult result_of(const Json& line) {
  TrialResult result;
  const auto take = [&](const char* key, auto& value) {
    if (const auto found = line.find(key); found != line.end()) found->get_to(value);
  };
  line.at("key").get_to(result.key);
  line.at("cell").get_to(result.cell);
  line.at("name").get_to(result.name);
  line.at("settings").get_to(result.settings);
  const std::string measure = line.at("measure");
  if (measure != name_of(Measure::Throughput) && measure != name_of(Measure::Accuracy)) {
    throw RunError(fmt::format("measure: found '{}', expected throughput or accuracy", measure));
  }
  result.measure = measure == name_of(Measure::Accuracy) ? Measure::Accuracy : Measure::Throughput;
  take("repetition", result.repetition);
  const Json& identity = line.at("identity");
  identity.at("graph").get_to(result.identity.graph);
  identity.at("options").get_to(result.identity.options);
  identity.at("build").get_to(result.identity.build);
  identity.at("devices").get_to(result.identity.devices);
  take("error", result.error);
  take("images_per_second", result.images_per_second);
  take("windows", result.windows);
  take("warmup_seconds", result.warmup_seconds);
  take("settled", result.settled);
  take("peak_bytes", result.peak_bytes);
  take("taken_bytes", result.taken_bytes);
  take("joules", result.joules);
  take("joules_per_image", result.joules_per_image);
  take("late_batches", result.late_batches);
  take("gpu_busy", result.gpu_busy);
  take("seconds", result.seconds);
  take("setup_seconds", result.setup_seconds);
  take("command_seconds", result.command_seconds);
  take("epochs", result.epochs);
  take("lower", result.lower);
  if (const auto curve = line.find("curve"); curve != line.end()) {
    for (const Json& point : *curve) result.curve.push_back({point.at(0), point.at(1), point.at(2)});
  }
  if (result.measure == Measure::Accuracy && result.error.empty() && result.curve.empty()) {
    throw RunError("curve: found no validations, expected one or more");
  }
  if (const auto state = line.find("state"); state != line.end()) result.state = *state;
  return result;
}

void keep(std::vector<TrialResult>& trials, TrialResult result) {
  // Another program's trial may be that of several cells.
  const auto same = [&](const TrialResult& earlier) {
    return earlier.key == result.key && earlier.cell == result.cell;
  };
  std::erase_if(trials, same);
  trials.push_back(std::move(result));
}

// Makes the folder that the file stands in, if it can be made.
const std::string& with_folder(const std::string& path) {
  std::error_code told_by_the_file;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), told_by_the_file);
  return path;
}

}  // namespace

std::vector<std::string> differences(const Identity& one, const Identity& other) {
  std::vector<std::string> differ;
  const auto look = [&](const char* what, std::string Identity::*part) {
    if (one.*part != other.*part) differ.emplace_back(what);
  };
  look("the graph", &Identity::graph);
  look("the options", &Identity::options);
  look("the build", &Identity::build);
  look("the devices", &Identity::devices);
  return differ;
}

std::string_view name_of(Measure measure) {
  return measure == Measure::Throughput ? "throughput" : "accuracy";
}

std::string line_of(const TrialResult& result) {
  const Identity& identity = result.identity;
  Json line = {{"event", "trial"},
               {"key", result.key},
               {"cell", result.cell},
               {"name", result.name},
               {"measure", name_of(result.measure)},
               {"repetition", result.repetition},
               {"settings", result.settings},
               {"identity",
                {{"graph", identity.graph},
                 {"options", identity.options},
                 {"build", identity.build},
                 {"devices", identity.devices}}}};
  if (!result.error.empty()) {
    line["error"] = result.error;
  } else {
    line["images_per_second"] = result.images_per_second;
    line["setup_seconds"] = result.setup_seconds;
    line["peak_bytes"] = result.peak_bytes;
    if (result.taken_bytes >= 0) line["taken_bytes"] = result.taken_bytes;
    if (result.joules > 0) line["joules"] = result.joules;
    if (result.joules_per_image > 0) line["joules_per_image"] = result.joules_per_image;
    if (result.late_batches >= 0) line["late_batches"] = result.late_batches;
    if (result.gpu_busy >= 0) line["gpu_busy"] = result.gpu_busy;
    if (result.measure == Measure::Throughput) {
      line["windows"] = result.windows;
      line["warmup_seconds"] = result.warmup_seconds;
      if (!result.settled) line["settled"] = false;
    } else {
      line["seconds"] = result.seconds;
      if (result.command_seconds > 0) line["command_seconds"] = result.command_seconds;
      line["epochs"] = result.epochs;
      if (result.lower) line["lower"] = true;
      line["curve"] = Json::array();
      for (const CurvePoint& point : result.curve) line["curve"].push_back({point.epoch, point.seconds, point.value});
    }
  }
  if (!result.state.is_null()) line["state"] = result.state;
  return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Results read_results(const std::string& path) {
  Results results;
  JsonLines lines = read_json_lines(path, [&](const Json& line) {
    if (line.at("event") != "trial") throw RunError("event: expected trial");
    keep(results.trials, result_of(line));
  });
  if (lines.read == 0 && !lines.faults.empty()) {
    throw RunError(fmt::format("{}; the file holds no results of a bench", lines.faults.front()));
  }
  results.whole = lines.whole;
  results.faults = std::move(lines.faults);
  return results;
}

std::vector<TrialResult> told_results(const std::string& path) {
  Results results = read_results(path);
  warn_of_faults(results.faults);
  return std::move(results.trials);
}

ResultsFile::ResultsFile(const std::string& path)
    : file_(with_folder(path), "file of results", "and so does the bench"), results_(read_results(path)) {
  file_.cut(results_.whole);
}

void ResultsFile::add(TrialResult result) {
  file_.write(line_of(result));
  if (file_.failed()) throw RunError("the results cannot be written");
  keep(results_.trials, std::move(result));
}

}  // namespace arbalest
