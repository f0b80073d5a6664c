// SPDX-License-Identifier: Apache-2.0
#include "tools/watch/mlperf_log.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/files/file_kind.h"
#include "base/process.h"

namespace arbalest {
namespace {

using Json = nlohmann::ordered_json;

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Keys that stand for the course of a run, which no entry may state.
constexpr std::array<std::string_view, 15> kCourse = {"init_start",  "init_stop",     "run_start",      "run_stop",
                                                      "epoch_start", "epoch_stop",    "block_start",    "block_stop",
                                                      "eval_start",  "eval_accuracy", "eval_samples",   "eval_stop",
                                                      "eval_error",  "checkpoint",    "trained_samples"};

// A key of MLPerf's and the attribute of arbalest.Train that it is, for some optimiser; "": for any.
struct TrainKey {
  const char* key;
  const char* attribute;
  std::string_view optimizer;
};
constexpr std::array<TrainKey, 25> kTrainKeys = {{
    {"opt_name", "optimizer", ""},
    {"opt_base_learning_rate", "lr", ""},
    {"opt_learning_rate_warmup_epochs", "warmup", ""},
    {"opt_learning_rate_decay_schedule", "schedule", ""},
    {"opt_gradient_clip_norm", "clip_norm", ""},
    {"gradient_accumulation_steps", "accumulate", ""},
    {"sgd_opt_base_learning_rate", "lr", "sgd"},
    {"sgd_opt_end_learning_rate", "lr_end", "sgd"},
    {"sgd_opt_learning_rate_decay_poly_power", "power", "sgd"},
    {"sgd_opt_weight_decay", "weight_decay", "sgd"},
    {"sgd_opt_momentum", "momentum", "sgd"},
    {"lars_opt_base_learning_rate", "lr", "lars"},
    {"lars_opt_end_learning_rate", "lr_end", "lars"},
    {"lars_opt_learning_rate_warmup_epochs", "warmup", "lars"},
    {"lars_opt_learning_rate_decay_poly_power", "power", "lars"},
    {"lars_opt_weight_decay", "weight_decay", "lars"},
    {"lars_opt_momentum", "momentum", "lars"},
    {"opt_adamw_beta_1", "beta1", "adamw"},
    {"opt_adamw_beta_2", "beta2", "adamw"},
    {"opt_adamw_epsilon", "epsilon", "adamw"},
    {"opt_adamw_weight_decay", "weight_decay", "adamw"},
    {"opt_lamb_beta_1", "beta1", "lamb"},
    {"opt_lamb_beta_2", "beta2", "lamb"},
    {"opt_lamb_epsilon", "epsilon", "lamb"},
    {"opt_lamb_weight_decay_rate", "weight_decay", "lamb"},
}};

// The name of the node that trains, of its attributes "NAME.optimizer", …; "": the graph trains nothing.
std::string trainer_in(const Json& attributes) {
  constexpr std::string_view kAttribute = ".optimizer";
  for (const auto& [name, value] : attributes.items()) {
    if (name.ends_with(kAttribute)) return name.substr(0, name.size() - kAttribute.size());
  }
  return "";
}

// Hyperparameters under MLPerf's names, from the attributes of the graph.
std::vector<MlperfLog::Entry> hyperparameters_of(const Json& attributes) {
  std::vector<MlperfLog::Entry> found;
  const std::string trainer = trainer_in(attributes);
  if (trainer.empty()) return found;
  const auto attribute = [&](const char* name) { return attributes.value(trainer + "." + name, Json()); };
  const Json optimizer = attribute("optimizer");
  for (const TrainKey& each : kTrainKeys) {
    if (each.optimizer.empty() || optimizer == each.optimizer) found.emplace_back(each.key, attribute(each.attribute));
  }
  return found;
}

Json* entry_named(std::vector<MlperfLog::Entry>& entries, std::string_view key) {
  for (auto& [name, value] : entries) {
    if (name == key) return &value;
  }
  return nullptr;
}

// "2 × NVIDIA H100 80GB HBM3"; devices without a known model by their names.
std::string platform_of(const RunStarted& event) {
  std::vector<std::string> texts;
  for (size_t d = 0; d < event.devices.size();) {
    const auto model = [&](size_t at) { return at < event.models.size() ? event.models[at] : ""; };
    size_t end = d + 1;
    while (end < event.devices.size() && model(end) == model(d)) ++end;
    texts.push_back(fmt::format("{} × {}", end - d, model(d).empty() ? event.devices[d] : model(d)));
    d = end;
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

// The part of a log that stays when its run goes on from a checkpoint.
struct KeptPart {
  int64_t bytes = -1;      // up to the end of the checkpoint's line; −1: it has none
  bool in_epoch = false;   // an epoch has begun in it that does not end in it
  bool validated = false;  // it has the number of validation's samples
  bool succeeded = false;  // it has the end that came with the target, which stays
};

KeptPart kept_part_of(const std::string& path, const RunStarted& event, const std::string& target) {
  const std::string name = std::filesystem::path(event.resumed).filename().string();
  KeptPart so_far, kept;
  kept.bytes = end_of_line(path, [&](const std::string& line) {
    if (!line.starts_with(kMlperfLogStart)) return false;
    const Json json = Json::parse(line.substr(kMlperfLogStart.size()), nullptr, false);
    if (!json.is_object()) return false;
    const Json key = json.value("key", Json()), metadata = json.value("metadata", Json::object());
    if (key == "epoch_start" || key == "epoch_stop") so_far.in_epoch = key == "epoch_start";
    if (key == "eval_samples") so_far.validated = true;
    if (key == "run_stop" && metadata.value("target", Json()) == target) kept.succeeded = true;
    const bool found = key == "checkpoint" && json.value("value", Json()) == name &&
                       metadata.value("iteration", Json()) == event.resumed_iteration &&
                       metadata.value("seconds", Json()) == event.resumed_seconds;
    if (found) kept = so_far;
    return found;
  });
  return kept;
}

}  // namespace

MlperfLog::Entry MlperfLog::entry_of(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == 0 || equals == text.npos) {
    throw GraphError(fmt::format("--mllog-set '{}': expected KEY=VALUE, as in submission_org=Lab", text));
  }
  const std::string key = text.substr(0, equals), written = text.substr(equals + 1);
  if (std::find(kCourse.begin(), kCourse.end(), key) != kCourse.end()) {
    throw GraphError(fmt::format("--mllog-set '{}': '{}' follows from the run; expected another key", text, key));
  }
  const Json value = Json::parse(written, nullptr, false);
  return {key, value.is_discarded() ? Json(written) : value};
}

MlperfLog::MlperfLog(const std::string& path, const RunSettings& settings, std::vector<Entry> entries, bool goes_on,
                     std::optional<Target> target)
    : path_(path),
      hyperparameters_(hyperparameters_of(settings.attributes)),
      entries_(std::move(entries)),
      goes_on_(goes_on),
      target_(std::move(target)),
      file_(path, "MLPerf log"),
      constructed_(seconds_since_1970()) {}

void MlperfLog::write(Kind kind, const char* key, double seconds, const Json& value, const Json& metadata) {
  if (!writes_) return;
  const char* type = kind == Kind::Point ? "POINT_IN_TIME" : kind == Kind::Start ? "INTERVAL_START" : "INTERVAL_END";
  const Json line = {{"namespace", ""},    {"time_ms", std::llround((began_ + seconds) * 1e3)},
                     {"event_type", type}, {"key", key},
                     {"value", value},     {"metadata", metadata}};
  file_.write(fmt::format("{}{}\n", kMlperfLogStart, line.dump(-1, ' ', false, Json::error_handler_t::replace)));
}

// All that is known before the run: who submits, the hyperparameters, and when it began.
void MlperfLog::write_head(const RunStarted& event) {
  std::vector<Entry> all = {
      {"submission_benchmark", event.graph},
      {"submission_division", "open"},
      {"submission_org", "unstated"},
      {"submission_platform", platform_of(event)},
      {"submission_status", "research"},
      {"cache_clear", false},
      {"seed", event.seed},
      {"train_samples", event.samples_per_epoch},
      {"model_bn_span", event.batch},
      {"lowest_numerical_precision_in_linear", event.precision == "bf16" ? "bfloat16" : event.precision}};
  all.insert(all.end(), hyperparameters_.begin(), hyperparameters_.end());
  const auto number = [&](const char* key, double otherwise) {
    const Json* value = entry_named(all, key);
    return value && value->is_number() ? value->get<double>() : otherwise;
  };
  const auto accumulate = int64_t(number("gradient_accumulation_steps", 1));
  all.emplace_back("global_batch_size",
                   event.batch * event.learners * int64_t(event.devices.size()) * std::max<int64_t>(accumulate, 1));
  if (event.iterations > 0 && accumulate > 0) {
    const int64_t rising =
        std::llround(number("opt_learning_rate_warmup_epochs", 0) * double(event.iterations_per_epoch));
    all.emplace_back("max_steps", event.iterations / accumulate);
    for (const char* optimizer : {"sgd", "lars"}) {
      const Json* name = entry_named(all, "opt_name");
      if (!name || *name != optimizer) continue;
      all.emplace_back(fmt::format("{}_opt_learning_rate_decay_steps", optimizer),
                       std::max<int64_t>(event.iterations - rising, 0) / accumulate);
    }
  }
  for (const Entry& entry : entries_) {
    if (Json* value = entry_named(all, entry.first)) {
      *value = entry.second;
    } else {
      all.push_back(entry);
    }
  }
  const double begin = constructed_ - began_;
  write(Kind::Start, "init_start", begin, Json());
  for (const auto& [key, value] : all) write(Kind::Point, key.c_str(), begin, value);
  write(Kind::End, "init_stop", -event.setup_seconds, Json());
  write(Kind::Start, "run_start", -event.setup_seconds, Json());
}

void MlperfLog::started(const RunStarted& event) {
  metric_ = target_ ? target_->metric : event.best_metric;
  epoch_samples_ = event.samples_per_epoch;
  began_ = seconds_since_1970() - event.resumed_seconds;
  last_iteration_ = event.resumed_iteration;
  last_seconds_ = event.resumed_seconds;
  writes_ = true;
  if (!goes_on_) {
    file_.cut(0);
    write_head(event);
    return;
  }
  const KeptPart kept = kept_part_of(path_, event, target_ ? to_string(*target_) : "");
  if (target_ && kept.succeeded) {
    writes_ = false;
    return;
  }
  if (kept.bytes < 0) {
    warn(fmt::format("{}: has no line of the checkpoint '{}'; the log begins here, and is not a whole run's", path_,
                     event.resumed));
    write_head(event);
    return;
  }
  file_.cut(kept.bytes);
  in_epoch_ = kept.in_epoch;
  validated_ = kept.validated;
}

void MlperfLog::kept(const SamplesKept& event) {
  if (event.samples >= event.all) began_ = seconds_since_1970() - last_seconds_;  // training begins only now
}

void MlperfLog::begin_epoch(int64_t epoch) {
  if (in_epoch_) return;
  in_epoch_ = true;
  write(Kind::Start, "epoch_start", last_seconds_, Json(), {{"epoch_num", epoch}});
}

void MlperfLog::progress(const RunProgress& event) {
  if (event.iteration > last_iteration_) begin_epoch(int64_t(std::ceil(event.epochs)));
}

void MlperfLog::epoch(const EpochEnded& event) {
  begin_epoch(event.epoch);
  const Json metadata = {{"epoch_num", event.epoch}};
  write(Kind::End, "epoch_stop", event.seconds, Json(), metadata);
  in_epoch_ = false;
  last_iteration_ = event.iteration;
  last_seconds_ = event.seconds;
  if (event.validates) write(Kind::Start, "eval_start", event.seconds, Json(), metadata);
}

void MlperfLog::validation(const Validated& event) {
  if (!validated_) write(Kind::Point, "eval_samples", event.seconds, event.samples);
  validated_ = true;
  double value = event.loss;
  for (const auto& [name, metric] : event.metrics) {
    if (name == metric_ || (metric_.empty() && std::isnan(value))) value = metric;
  }
  const Json metadata = {{"epoch_num", event.epoch}};
  Json named = metadata;
  if (!metric_.empty()) named["metric"] = metric_;
  write(Kind::Point, "eval_accuracy", event.seconds, value, named);
  write(Kind::End, "eval_stop", event.seconds, Json(), metadata);
  if (target_ && target_->met(value)) write_end(event.seconds, event.epoch * epoch_samples_, true);
}

void MlperfLog::write_end(double seconds, int64_t images, bool success) {
  write(Kind::Point, "trained_samples", seconds, images);
  Json metadata = {{"status", success ? "success" : "aborted"}};
  if (success && target_) metadata["target"] = to_string(*target_);
  write(Kind::End, "run_stop", seconds, Json(), metadata);
  writes_ = false;
}

void MlperfLog::checkpoint(const CheckpointSaved& event) {
  if (!event.whole) return;
  write(Kind::Point, "checkpoint", event.seconds, std::filesystem::path(event.path).filename().string(),
        {{"epoch_num", event.epoch}, {"iteration", event.iteration}, {"seconds", event.seconds}});
}

void MlperfLog::rolled_back(const RolledBack& event) {
  in_epoch_ = false;
  last_iteration_ = event.iteration;
  last_seconds_ = event.seconds;
}

void MlperfLog::finished(const RunFinished& event) {
  const bool cut_short = event.reason == RunEnd::Interrupted || event.reason == RunEnd::TimeLimit;
  const bool reached = std::all_of(event.targets.begin(), event.targets.end(),
                                   [](const TargetReached& target) { return target.seconds >= 0; });
  write_end(event.seconds, event.images, !cut_short && reached && !target_);
}

void MlperfLog::failed(const RunFailed& event) {
  write(Kind::End, "run_stop", event.seconds, Json(), {{"status", "aborted"}, {"error", event.message}});
}

}  // namespace arbalest
