// SPDX-License-Identifier: Apache-2.0

// The parts of a checkpoint that are no tensors, as JSON. Numbers that JSON lacks are the words "nan", "inf", "-inf".

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "executor/training/checkpoint.h"
#include "graph/measures.h"

namespace arbalest {
namespace {

using Json = nlohmann::json;

constexpr int64_t kFormat = 1, kFormatOfParts = 2;  // the second: ranks have files of their own
constexpr int64_t kMost = int64_t{1} << 50;         // of any count
constexpr int64_t kMostHosts = 1 << 16;

Json real(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

double real_of(const Json& json) {
  if (json.is_number()) return json.get<double>();
  const auto& word = json.get_ref<const std::string&>();
  if (word == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (word == "inf") return std::numeric_limits<double>::infinity();
  if (word == "-inf") return -std::numeric_limits<double>::infinity();
  throw RunError(fmt::format("found '{}', expected a number", word.substr(0, 20)));
}

int64_t count_of(const Json& json, int64_t most = kMost) {
  const bool whole = json.is_number_integer() || json.is_number_unsigned();
  if (!whole || json.is_number_float()) throw RunError("found something else, expected a whole number");
  const auto value = json.get<int64_t>();
  if (value < -1 || value > most) throw RunError(fmt::format("the number {} is not from -1 to {}", value, most));
  return value;
}

Json reals(const std::vector<double>& values) {
  Json list = Json::array();
  for (const double value : values) list.push_back(real(value));
  return list;
}

std::vector<double> reals_of(const Json& json) {
  std::vector<double> values;
  for (const Json& value : json.get_ref<const Json::array_t&>()) values.push_back(real_of(value));
  return values;
}

std::vector<int64_t> counts_of(const Json& json) {
  std::vector<int64_t> values;
  for (const Json& value : json.get_ref<const Json::array_t&>()) values.push_back(count_of(value));
  return values;
}

Json json_of(const Metrics& metrics) {
  Json list = Json::array();
  for (const auto& [name, value] : metrics) list.push_back({name, real(value)});
  return list;
}

Metrics metrics_of(const Json& json) {
  Metrics metrics;
  for (const Json& pair : json.get_ref<const Json::array_t&>()) {
    metrics.emplace_back(pair.at(0).get<std::string>(), real_of(pair.at(1)));
  }
  return metrics;
}

Json json_of(const Validated& event) {
  return {{"epoch", event.epoch},
          {"iteration", event.iteration},
          {"samples", event.samples},
          {"left_out", event.left_out},
          {"seconds", event.seconds},
          {"loss", real(event.loss)},
          {"loss_undefined", event.loss_undefined},
          {"metrics", json_of(event.metrics)},
          {"parts", json_of(event.parts)},
          {"rate_factor", real(event.rate_factor)}};
}

Validated validated_of(const Json& json) {
  Validated event;
  event.epoch = count_of(json.at("epoch"));
  event.iteration = count_of(json.at("iteration"));
  event.samples = count_of(json.at("samples"));
  event.left_out = count_of(json.at("left_out"));
  event.seconds = real_of(json.at("seconds"));
  event.loss = real_of(json.at("loss"));
  event.loss_undefined = json.value("loss_undefined", false);  // older files have none
  event.metrics = metrics_of(json.at("metrics"));
  event.parts = metrics_of(json.at("parts"));
  event.rate_factor = real_of(json.at("rate_factor"));
  return event;
}

Json json_of(const EpochEnded& event) {
  return {{"epoch", event.epoch},         {"iteration", event.iteration},
          {"seconds", event.seconds},     {"images_per_second", real(event.images_per_second)},
          {"loss", real(event.loss)},     {"loss_undefined", event.loss_undefined},
          {"validates", event.validates}, {"metrics", json_of(event.metrics)}};
}

EpochEnded epoch_of(const Json& json) {
  EpochEnded event;
  event.epoch = count_of(json.at("epoch"));
  event.iteration = count_of(json.at("iteration"));
  event.seconds = real_of(json.at("seconds"));
  event.images_per_second = real_of(json.at("images_per_second"));
  event.loss = real_of(json.at("loss"));
  event.loss_undefined = json.value("loss_undefined", false);  // older files have none
  event.metrics = metrics_of(json.at("metrics"));
  event.validates = json.at("validates").get<bool>();
  return event;
}

Json json_of(const HeldBack& held) {
  Json lines = Json::array();
  for (const auto& [epoch, line] : held.lines) {
    lines.push_back({{"epoch", epoch},
                     {"end", line.end ? json_of(*line.end) : Json()},
                     {"validation", line.validation ? json_of(*line.validation) : Json()},
                     {"ended", line.ended},
                     {"awaits_validation", line.awaits_validation}});
  }
  return {{"lines", lines}, {"last_epoch", held.last_epoch}};
}

HeldBack held_of(const Json& json) {
  HeldBack held;
  held.last_epoch = count_of(json.at("last_epoch"));
  for (const Json& each : json.at("lines").get_ref<const Json::array_t&>()) {
    HeldBack::Line& line = held.lines[count_of(each.at("epoch"))];
    if (!each.at("end").is_null()) line.end = epoch_of(each.at("end"));
    if (!each.at("validation").is_null()) line.validation = validated_of(each.at("validation"));
    line.ended = each.at("ended").get<bool>();
    line.awaits_validation = each.at("awaits_validation").get<bool>();
  }
  return held;
}

Json json_of(const MonitorState& state) {
  Json targets = Json::array();
  for (const TargetReached& target : state.targets) targets.push_back({target.target, target.seconds});
  return {{"seconds", state.seconds},
          {"last_seconds", state.last_seconds},
          {"epoch_began", state.epoch_began},
          {"last_images", state.last_images},
          {"epoch_sums", reals(state.epoch_sums)},
          {"last", state.has_validated ? json_of(state.last) : Json()},
          {"best", json_of(state.best)},
          {"best_value", state.has_best ? real(state.best_value) : Json()},
          {"better", state.better ? Json(std::string(name_of(*state.better))) : Json()},
          {"best_epoch", state.best_epoch},
          {"best_iteration", state.best_iteration},
          {"since_best", state.since_best},
          {"since_drop", state.since_drop},
          {"factors", reals(state.factors)},
          {"drops", state.drops},
          {"targets", targets},
          {"rollbacks", state.rollbacks},
          {"rollback_factor", real(state.rollback_factor)},
          {"skipped", state.skipped},
          {"skipped_in_a_row", state.skipped_in_a_row}};
}

MonitorState monitor_of(const Json& json) {
  MonitorState state;
  state.seconds = real_of(json.at("seconds"));
  constexpr double kLongest = 1e9;  // seconds
  if (!(state.seconds >= 0 && state.seconds < kLongest)) throw RunError("the seconds of training are not possible");
  state.last_seconds = real_of(json.at("last_seconds"));
  state.epoch_began = real_of(json.at("epoch_began"));
  state.last_images = count_of(json.at("last_images"));
  state.epoch_sums = reals_of(json.at("epoch_sums"));
  state.has_validated = !json.at("last").is_null();
  if (state.has_validated) state.last = validated_of(json.at("last"));
  state.best = metrics_of(json.at("best"));
  state.has_best = !json.at("best_value").is_null();
  if (state.has_best) state.best_value = real_of(json.at("best_value"));
  if (json.contains("better") && json["better"].is_string())
    state.better = parse_better(json["better"].get<std::string>());
  state.best_epoch = count_of(json.at("best_epoch"));
  state.best_iteration = count_of(json.at("best_iteration"));
  state.since_best = count_of(json.at("since_best"));
  state.since_drop = count_of(json.at("since_drop"));
  state.factors = reals_of(json.at("factors"));
  state.drops = counts_of(json.at("drops"));
  for (const Json& target : json.at("targets").get_ref<const Json::array_t&>()) {
    state.targets.push_back({target.at(0).get<std::string>(), real_of(target.at(1))});
  }
  if (!json.contains("rollbacks")) return state;  // a checkpoint of a version without them
  state.rollbacks = count_of(json.at("rollbacks"));
  state.rollback_factor = real_of(json.at("rollback_factor"));
  state.skipped = count_of(json.at("skipped"));
  state.skipped_in_a_row = count_of(json.at("skipped_in_a_row"));
  return state;
}

Json json_of(const RunPosition& at) {
  return {{"epoch", at.epoch}, {"iteration", at.iteration}, {"images", at.images}, {"epochs", at.epochs}};
}

RunPosition position_of(const Json& json) {
  return {count_of(json.at("epoch")), count_of(json.at("iteration")), count_of(json.at("images")),
          real_of(json.at("epochs"))};
}

Json json_of(const Cursor& cursor) {
  return {{"epoch", cursor.epoch},
          {"batch", cursor.batch},
          {"iteration", cursor.iteration},
          {"images", cursor.images},
          {"validations", cursor.validations},
          {"rate_drops", cursor.rate_drops ? Json(*cursor.rate_drops) : Json()}};
}

Cursor cursor_of(const Json& json) {
  constexpr int64_t kMostOfCursor = int64_t{1} << 40;  // as of a plan's clocks
  Cursor cursor;
  for (const auto& [name, count] : {std::pair{"epoch", &cursor.epoch},
                                    {"batch", &cursor.batch},
                                    {"iteration", &cursor.iteration},
                                    {"images", &cursor.images},
                                    {"validations", &cursor.validations}}) {
    *count = count_of(json.at(name), kMostOfCursor);
    if (*count < 0) throw RunError(fmt::format("the number {} of '{}' is below 0", *count, name));
  }
  if (!json.at("rate_drops").is_null()) cursor.rate_drops = count_of(json.at("rate_drops"));
  return cursor;
}

StrategyOptions strategy_of(const Json& json) {
  StrategyOptions strategy;
  try {
    strategy.name = strategy_spec(json.at("kind").get<std::string>()).name;
  } catch (const GraphError& error) {
    throw RunError(error.what());
  }
  strategy.every = count_of(json.at("every"));
  if (json.contains("every_hosts")) strategy.every_hosts = count_of(json["every_hosts"]);  // older files have none
  strategy.alpha = real_of(json.at("alpha"));
  strategy.beta = real_of(json.at("beta"));
  strategy.momentum = real_of(json.at("momentum"));
  strategy.follows_rate = json.value("follows_rate", false);  // older files have none
  return strategy;
}

int32_t host_of(const Json& json) {
  const int64_t host = count_of(json, kMostHosts - 1);
  if (host < 0) throw RunError(fmt::format("the number {} of a host is below 0", host));
  return int32_t(host);
}

Json json_of(const SegmentSnapshot& segment) {
  Json learners = Json::array(), tallies = Json::array();
  for (size_t j = 0; j < segment.state.learners.size(); ++j) {
    learners.push_back({{"updates", segment.state.learners[j].updates},
                        {"updates_before", segment.updates[j]},
                        {"correction", real(segment.corrections[j])},
                        {"host", segment.state.learners[j].host}});
  }
  for (const std::vector<double>& sums : segment.tallies) tallies.push_back(reals(sums));
  const MovingAverage& average = segment.state.moving_average;
  return {{"from", json_of(segment.from)},
          {"iterations", segment.at.iterations},
          {"validations", segment.at.validations},
          {"learners_per_device", segment.learners},
          {"learners", learners},
          {"averaged", segment.state.averaged},
          {"unaveraged", segment.state.unaveraged},
          {"apart", segment.state.apart},
          {"moving_average", {{"decay", average.decay}, {"updates", average.updates}, {"within", average.within}}},
          {"reported", segment.reported},
          {"trained", reals(segment.trained)},
          {"validated", reals(segment.validated)},
          {"tallies", tallies},
          {"validating", segment.validating}};
}

SegmentSnapshot segment_of(const Json& json) {
  SegmentSnapshot segment;
  segment.from = cursor_of(json.at("from"));
  segment.at = {count_of(json.at("iterations")), count_of(json.at("validations"))};
  constexpr int64_t kMostLearners = 1 << 20;
  segment.learners = int32_t(count_of(json.at("learners_per_device"), kMostLearners));
  for (const Json& each : json.at("learners").get_ref<const Json::array_t&>()) {
    LearnerState& learner = segment.state.learners.emplace_back();
    learner.updates = count_of(each.at("updates"));
    learner.host = each.contains("host") ? host_of(each["host"]) : 0;  // older files have none
    segment.updates.push_back(count_of(each.at("updates_before")));
    segment.corrections.push_back(real_of(each.at("correction")));
  }
  segment.state.averaged = json.at("averaged").get<bool>();
  segment.state.unaveraged = count_of(json.at("unaveraged"));
  segment.state.apart = json.contains("apart") ? count_of(json["apart"]) : segment.state.unaveraged;
  const Json& average = json.at("moving_average");
  segment.state.moving_average.decay = real_of(average.at("decay"));
  segment.state.moving_average.updates = count_of(average.at("updates"));
  segment.state.moving_average.within = count_of(average.at("within"));
  segment.reported = count_of(json.at("reported"));
  segment.trained = reals_of(json.at("trained"));
  segment.validated = reals_of(json.at("validated"));
  for (const Json& sums : json.at("tallies").get_ref<const Json::array_t&>()) segment.tallies.push_back(reals_of(sums));
  segment.validating = json.at("validating").get<bool>();
  return segment;
}

Json json_of(const CheckpointParts& parts) {
  Json ranks = Json::array();
  for (const CheckpointParts::Part& part : parts.of_ranks) {
    ranks.push_back({{"first_learner", part.first_learner}, {"learners", part.learners}, {"host", part.host}});
  }
  return {{"tag", parts.tag}, {"ranks", ranks}};
}

CheckpointParts parts_of(const Json& json) {
  constexpr size_t kDigits = 16;
  CheckpointParts parts;
  parts.tag = json.at("tag").get<std::string>();
  if (parts.tag.size() != kDigits || parts.tag.find_first_not_of("0123456789abcdef") != parts.tag.npos) {
    throw RunError(
        fmt::format("found the tag '{}', expected {} hexadecimal digits", printable(parts.tag.substr(0, 20)), kDigits));
  }
  for (const Json& each : json.at("ranks").get_ref<const Json::array_t&>()) {
    CheckpointParts::Part& part = parts.of_ranks.emplace_back();
    part.first_learner = count_of(each.at("first_learner"));
    part.learners = count_of(each.at("learners"));
    part.host = int32_t(count_of(each.at("host"), kMostHosts - 1));
  }
  return parts;
}

}  // namespace

Json to_json(const Checkpoint& checkpoint) {
  Json tuner;
  if (checkpoint.tuner) {
    tuner = {{"learners", checkpoint.tuner->learners},
             {"before", checkpoint.tuner->before},
             {"best", checkpoint.tuner->best},
             {"done", checkpoint.tuner->done}};
  }
  const bool alone = checkpoint.parts.of_ranks.empty();
  Json json = {{"format", alone ? kFormat : kFormatOfParts},
               {"settings", checkpoint.identity.settings},
               {"graph", checkpoint.identity.graph},
               {"class_names", checkpoint.identity.class_names},
               {"changes", checkpoint.changes},
               {"command", checkpoint.command},
               {"folder", checkpoint.folder},
               {"strategy",
                {{"kind", checkpoint.strategy.name},
                 {"every", checkpoint.strategy.every},
                 {"every_hosts", checkpoint.strategy.every_hosts},
                 {"alpha", checkpoint.strategy.alpha},
                 {"beta", checkpoint.strategy.beta},
                 {"momentum", checkpoint.strategy.momentum},
                 {"follows_rate", checkpoint.strategy.follows_rate}}},
               {"next", json_of(checkpoint.next)},
               {"total_epochs", checkpoint.total_epochs},
               {"position", json_of(checkpoint.position)},
               {"ended", name_of(checkpoint.ended)},
               {"segment", json_of(checkpoint.segment)},
               {"monitor", json_of(checkpoint.monitor)},
               {"held", json_of(checkpoint.held)},
               {"tuner", tuner},
               {"validated", checkpoint.keeps_validated ? json_of(checkpoint.validated_at) : Json()}};
  if (!alone) json["parts"] = json_of(checkpoint.parts);
  return json;
}

Checkpoint checkpoint_from_json(const Json& json) {
  const int64_t format = count_of(json.at("format"));
  if (format != kFormat && format != kFormatOfParts) {
    throw RunError(fmt::format("found a checkpoint of format {}, expected {} or {}", format, kFormat, kFormatOfParts));
  }
  Checkpoint checkpoint;
  json.at("settings").get_to(checkpoint.identity.settings);
  json.at("graph").get_to(checkpoint.identity.graph);
  if (json.contains("class_names")) json.at("class_names").get_to(checkpoint.identity.class_names);
  if (json.contains("changes")) json.at("changes").get_to(checkpoint.changes);
  json.at("command").get_to(checkpoint.command);
  json.at("folder").get_to(checkpoint.folder);
  checkpoint.strategy = strategy_of(json.at("strategy"));
  checkpoint.next = cursor_of(json.at("next"));
  checkpoint.total_epochs = real_of(json.at("total_epochs"));
  checkpoint.position = position_of(json.at("position"));
  checkpoint.ended = parse_run_end(json.at("ended").get<std::string>());
  checkpoint.segment = segment_of(json.at("segment"));
  checkpoint.monitor = monitor_of(json.at("monitor"));
  checkpoint.held = held_of(json.at("held"));
  if (const Json& tuner = json.at("tuner"); !tuner.is_null()) {
    checkpoint.tuner = {int32_t(count_of(tuner.at("learners"), 1 << 20)),
                        int32_t(count_of(tuner.at("before"), 1 << 20)), real_of(tuner.at("best")),
                        tuner.at("done").get<bool>()};
  }
  checkpoint.keeps_validated = !json.at("validated").is_null();
  if (checkpoint.keeps_validated) checkpoint.validated_at = position_of(json.at("validated"));
  if (format == kFormatOfParts) checkpoint.parts = parts_of(json.at("parts"));
  return checkpoint;
}

}  // namespace arbalest
