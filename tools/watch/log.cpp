// SPDX-License-Identifier: Apache-2.0
#include "tools/watch/log.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/process.h"

namespace arbalest {
namespace {

using Json = nlohmann::ordered_json;  // keeps the order written: "event" first

// Adds metrics to the line as keys of their own; not-a-number becomes null.
void add(Json& line, const Metrics& metrics) {
  for (const auto& [name, value] : metrics) line[name] = value;
}

void add(Json& line, const InputReport& input) {
  line["late_batches"] = input.late;
  if (input.read + input.decode + input.scale == 0) return;
  line["sample_microseconds"] = {{"read", input.read}, {"decode", input.decode}, {"scale", input.scale}};
}

Json object(const Metrics& metrics) {
  Json result = Json::object();
  add(result, metrics);
  return result;
}

// The key of the value that is trained: "loss", unless a metric of that name is another value.
std::string key_of_loss(const std::string& trained) {
  return trained.empty() ? "loss" : trained;
}

Json validation_line(const char* event, const Validated& validated, const std::string& trained) {
  Json line = {{"event", event},
               {"epoch", validated.epoch},
               {"iteration", validated.iteration},
               {"seconds", validated.seconds},
               {"samples", validated.samples},
               {key_of_loss(trained), validated.loss}};
  if (validated.left_out > 0) line["left_out"] = validated.left_out;
  add(line, validated.metrics);
  add(line, validated.parts);
  if (validated.rate_factor != 1) line["rate_factor"] = validated.rate_factor;
  return line;
}

// The offset after the checkpoint's line; −1: there is none. Two checkpoints may follow the same iteration: one before
// and one after a validation.
int64_t end_of_checkpoint(const std::string& path, const RunStarted& event) {
  const std::string name = std::filesystem::path(event.resumed).filename().string();
  return end_of_line(path, [&](const std::string& line) {
    if (line.find(name) == line.npos) return false;
    const Json json = Json::parse(line, nullptr, false);
    const bool whole =
        json.is_object() && json.value("event", Json()) == "checkpoint" && json.value("whole", Json()) == true;
    return whole && json.value("iteration", Json()) == event.resumed_iteration &&
           json.value("seconds", Json()) == event.resumed_seconds;
  });
}

}  // namespace

const std::vector<std::string>& JsonLog::keys() {
  static const std::vector<std::string> all = {"event",
                                               "epoch",
                                               "epochs",
                                               "iteration",
                                               "seconds",
                                               "samples",
                                               "left_out",
                                               "rate_factor",
                                               "learning_rate",
                                               "images_per_second",
                                               "late_batches",
                                               "missed",
                                               "skipped_updates",
                                               "images",
                                               "sample_microseconds",
                                               "reason",
                                               "setup_seconds",
                                               "learners",
                                               "interrupted_by",
                                               "best",
                                               "best_epoch",
                                               "best_metric",
                                               "best_value",
                                               "targets",
                                               "weights",
                                               "best_weights",
                                               "weights_error",
                                               "best_error",
                                               "checkpoint",
                                               "checkpoint_error",
                                               "trace",
                                               "trace_error",
                                               "weights_epoch",
                                               "weights_iteration",
                                               "taken_bytes"};
  return all;
}

JsonLog::JsonLog(const std::string& path, RunSettings settings, bool goes_on)
    : path_(path),
      settings_(std::move(settings)),
      goes_on_(goes_on),
      file_(path, "log"),
      waits_(goes_on || !file_.empty()) {}

template <typename Line>
void JsonLog::write(const Line& line) {
  const std::string text = line.dump(-1, ' ', false, Line::error_handler_t::replace) + "\n";
  if (waits_) {
    waiting_ += text;
  } else {
    file_.write(text);
  }
}

// Cuts the log after the checkpoint's line. If the log has no such line, goes on after its content with a warning.
void JsonLog::go_on(const RunStarted& event) {
  if (file_.empty()) {
    warn(
        fmt::format("{}: is new; what the run logged up to iteration {} is not in it", path_, event.resumed_iteration));
    return;
  }
  if (const int64_t end = end_of_checkpoint(path_, event); end >= 0) {
    file_.cut(end);
  } else {
    warn(fmt::format("{}: has no line of the checkpoint '{}'; the log goes on after what it holds", path_,
                     event.resumed));
  }
}

void JsonLog::started(const RunStarted& event) {
  if (goes_on_) {
    go_on(event);
  } else if (waits_) {
    file_.cut(0);
  }
  waits_ = false;
  trained_ = event.trained;
  Json versions = Json::object();
  for (const auto& [name, version] : event.versions) versions[name] = version;
  Json line = {{"event", event.resumed.empty() ? "start" : "resume"},
               {"time", settings_.time},
               {"graph", event.graph},
               {"devices", event.devices},
               {"models", event.models},
               {"learners", event.learners},
               {"strategy", event.strategy},
               {"batch", event.batch},
               {"precision", event.precision},
               {"seed", event.seed},
               {"deterministic", event.deterministic},
               {"versions", versions},
               {"parameters", event.parameters},
               {"planned_peak_bytes", event.planned_peak_bytes},
               {"samples_per_epoch", event.samples_per_epoch},
               {"iterations_per_epoch", event.iterations_per_epoch},
               {"iterations", event.iterations},
               {"setup_seconds", event.setup_seconds}};
  if (!trained_.empty()) line["trained"] = trained_;
  if (!event.best_metric.empty()) {
    line["best_metric"] = event.best_metric;
    line["better"] = event.better.empty() ? Json() : Json(event.better);
  }
  if (!event.resumed.empty()) {
    line["checkpoint"] = event.resumed;
    line["iteration"] = event.resumed_iteration;
  }
  if (const Recomputation& again = event.recomputation; again.limit > 0) {
    line["memory_limit"] = {{"bytes", again.limit},
                            {"values_computed_again", again.values},
                            {"bytes_computed_again", again.bytes},
                            {"more_work", again.work}};
  }
  constexpr size_t kMostNames = 100;
  if (event.classes > 0) line["classes"] = event.classes;
  if (!event.class_names.empty() && event.class_names.size() <= kMostNames) line["class_names"] = event.class_names;
  if (!event.note.empty()) line["note"] = event.note;
  if (!event.changes.empty()) line["changes"] = event.changes;
  line["command"] = settings_.command;
  line["options"] = settings_.options;
  line["attributes"] = settings_.attributes;
  line["host"] = settings_.host;
  write(line);
  file_.write(std::exchange(waiting_, ""));
}

void JsonLog::progress(const RunProgress& event) {
  Json line = {{"event", "progress"},
               {"epoch", event.epoch},
               {"epochs", event.epochs},
               {"iteration", event.iteration},
               {"seconds", event.seconds},
               {"images_per_second", event.images_per_second},
               {"learning_rate", event.learning_rate},
               {key_of_loss(trained_), event.loss}};
  add(line, event.metrics);
  add(line, event.input);
  if (event.skipped_updates > 0) line["skipped_updates"] = event.skipped_updates;
  if (event.missed > 0) line["missed"] = event.missed;
  write(line);
}

void JsonLog::epoch(const EpochEnded& event) {
  Json line = {{"event", "epoch"},
               {"epoch", event.epoch},
               {"iteration", event.iteration},
               {"seconds", event.seconds},
               {"images_per_second", event.images_per_second},
               {key_of_loss(trained_), event.loss}};
  add(line, event.metrics);
  write(line);
}

void JsonLog::validation(const Validated& event) {
  write(validation_line("validation", event, trained_));
}

void JsonLog::skipped(const SampleSkipped& event) {
  write(Json{{"event", "skipped"}, {"sample", event.place}, {"fault", event.fault}});
}

void JsonLog::kept(const SamplesKept& event) {
  if (event.samples < event.all) return;
  write(Json{{"event", "kept"},
             {"split", event.split},
             {"samples", event.samples},
             {"bytes", event.bytes},
             {"seconds", event.seconds}});
}

void JsonLog::tuned(const Tuned& event) {
  write(Json{{"event", "tune"},
             {"epoch", event.epoch},
             {"iteration", event.iteration},
             {"seconds", event.seconds},
             {"learners", event.learners},
             {"images_per_second", event.images_per_second},
             {"next_learners", event.next},
             {"strategy", event.strategy},
             {"reason", event.reason}});
}

void JsonLog::checkpoint(const CheckpointSaved& event) {
  Json line = {{"event", "checkpoint"},    {"epoch", event.epoch}, {"iteration", event.iteration},
               {"seconds", event.seconds}, {"path", event.path},   {"bytes", event.bytes}};
  if (event.whole) {
    line["whole"] = true;
    line["paused_seconds"] = event.paused;
  }
  write(line);
}

void JsonLog::rolled_back(const RolledBack& event) {
  write(Json{{"event", "rollback"},
             {"epoch", event.epoch},
             {"iteration", event.iteration},
             {"seconds", event.seconds},
             {"reason", event.reason},
             {"from_iteration", event.from_iteration},
             {"checkpoint", event.path},
             {"times", event.times},
             {"rate_factor", event.rate_factor}});
}

void JsonLog::ranks_changed(const RanksChanged& event) {
  write(Json{{"event", event.lost.empty() ? "returned" : "lost"},
             {"epoch", event.epoch},
             {"iteration", event.iteration},
             {"seconds", event.seconds},
             {"reason", event.reason},
             {"ranks", event.lost},
             {"returned", event.returned},
             {"learners", event.learners},
             {"devices", event.devices},
             {"batches_left_out", event.left_out},
             {"paused_seconds", event.paused}});
}

void JsonLog::finished(const RunFinished& event) {
  Json line = {{"event", "end"},
               {"reason", name_of(event.reason)},
               {"epoch", event.epoch},
               {"iteration", event.iteration},
               {"images", event.images},
               {"seconds", event.seconds},
               {"setup_seconds", event.setup_seconds},
               {"images_per_second", event.images_per_second},
               {"learners", event.learners}};
  if (!event.interrupted_by.empty()) line["interrupted_by"] = event.interrupted_by;
  add(line, event.input);
  if (event.skipped_updates > 0) line["skipped_updates"] = event.skipped_updates;
  if (event.taken_bytes >= 0) line["taken_bytes"] = event.taken_bytes;
  if (event.validated) {
    line[key_of_loss(trained_)] = event.last.loss;
    add(line, event.last.metrics);
    line["best"] = object(event.best);
    line["best_epoch"] = event.best_epoch;
    if (event.best_epoch > 0) {
      line["best_metric"] = event.best_metric;
      line["best_value"] = event.best_value;
    }
  }
  if (!event.targets.empty()) {
    line["targets"] = Json::array();
    for (const TargetReached& target : event.targets) {
      Json seconds = target.seconds < 0 ? Json() : Json(target.seconds);
      line["targets"].push_back(Json{{"target", target.target}, {"seconds", seconds}});
    }
  }
  if (!event.weights.empty()) {
    line["weights"] = event.weights;
    line["weights_epoch"] = event.weights_epoch;
    line["weights_iteration"] = event.weights_iteration;
  }
  if (!event.weights_error.empty()) line["weights_error"] = event.weights_error;
  if (!event.best_weights.empty()) line["best_weights"] = event.best_weights;
  if (!event.best_error.empty()) line["best_error"] = event.best_error;
  if (!event.checkpoint.empty()) line["checkpoint"] = event.checkpoint;
  if (!event.checkpoint_error.empty()) line["checkpoint_error"] = event.checkpoint_error;
  if (!event.trace.empty()) line["trace"] = event.trace;
  if (!event.trace_error.empty()) line["trace_error"] = event.trace_error;
  write(line);
}

void JsonLog::failed(const RunFailed& event) {
  if (waits_) return;  // the run did not start, and what is there is an earlier one's
  Json line = {{"event", "error"}, {"message", event.message}, {"seconds", event.seconds}};
  if (event.epoch >= 0) line["epoch"] = event.epoch;
  if (event.iteration >= 0) line["iteration"] = event.iteration;
  if (!event.trace.empty()) line["trace"] = event.trace;
  write(line);
}

}  // namespace arbalest
