// SPDX-License-Identifier: Apache-2.0

// The parts of a checkpoint that are no tensors, as JSON. Each record has one list of its fields, which a writer and a
// reader visit. Numbers that JSON lacks are the words "nan", "inf", "-inf".

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
constexpr int64_t kMostHosts = 1 << 16, kMostLearners = 1 << 20;

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

std::string known_strategy(const std::string& name) try {
  return strategy_spec(name).name;
} catch (const GraphError& error) {
  throw RunError(error.what());
}

// A record, constant when it is written.
template <typename T, typename Record>
concept RecordOf = std::is_same_v<std::remove_const_t<T>, Record>;

// Numbers that are read have to be from `least` to `most`; an error calls one below `least` by the field's name, or
// `what`.
template <typename T>
struct Bounded {
  T& value;
  int64_t most, least = -1;
  const char* what = nullptr;
};

// A field that older files lack.
template <typename T>
struct Later {
  T& value;
};

// A field that is null unless the value is there.
template <typename Flag, typename T>
struct Nullable {
  Flag& there;
  T& value;
};

// Visits pairs of names and fields, as StateReader does.
class StateWriter {
 public:
  static constexpr bool kReads = false;

  Json json = Json::object();

  template <typename T, typename... More>
  void operator()(const char* name, const T& value, const More&... more) {
    json[name] = of(value);
    if constexpr (sizeof...(more) > 0) (*this)(more...);
  }
  bool has(const char* /*name*/) const { return true; }
  // A list of objects, whose fields `each(writer, i)` visits.
  template <typename Each>
  void list(const char* name, size_t count, const Each& each) {
    Json& objects = json[name] = Json::array();
    for (size_t i = 0; i < count; ++i) {
      StateWriter object;
      each(object, i);
      objects.push_back(std::move(object.json));
    }
  }

 private:
  template <typename T>
  static Json of(const T& value) {
    if constexpr (requires(StateWriter writer) { fields(writer, value); }) {
      StateWriter writer;
      fields(writer, value);
      return std::move(writer.json);
    } else {
      return value;
    }
  }
  static Json of(double value) {
    if (std::isfinite(value)) return value;
    return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  }
  static Json of(MetricSpec::Better better) { return std::string(name_of(better)); }
  static Json of(RunEnd end) { return name_of(end); }
  static Json of(const TargetReached& target) { return Json::array({target.target, of(target.seconds)}); }
  template <typename T>
  static Json of(const Bounded<T>& bounded) {
    return bounded.value;
  }
  template <typename T>
  static Json of(const Later<T>& later) {
    return of(later.value);
  }
  template <typename Flag, typename T>
  static Json of(const Nullable<Flag, T>& nullable) {
    return nullable.there ? of(nullable.value) : Json();
  }
  template <typename T>
  static Json of(const std::optional<T>& value) {
    return value ? of(*value) : Json();
  }
  template <typename A, typename B>
  static Json of(const std::pair<A, B>& pair) {
    return Json::array({of(pair.first), of(pair.second)});
  }
  template <typename T>
  static Json of(const std::vector<T>& values) {
    Json list = Json::array();
    for (const T& value : values) list.push_back(of(value));
    return list;
  }
};

// Throws RunError, or what the library throws, if a field is missing or holds what it cannot hold.
class StateReader {
 public:
  static constexpr bool kReads = true;

  explicit StateReader(const Json& json) : json_(json) {}

  template <typename T, typename... More>
  void operator()(const char* name, T&& field, More&&... more) {
    take(name, field);
    if constexpr (sizeof...(more) > 0) (*this)(more...);
  }
  bool has(const char* name) const { return json_.contains(name); }
  template <typename Each>
  void list(const char* name, size_t /*count*/, const Each& each) {
    size_t i = 0;
    for (const Json& object : json_.at(name).get_ref<const Json::array_t&>()) {
      StateReader reader(object);
      each(reader, i++);
    }
  }

 private:
  template <typename T>
  void take(const char* name, T& value) {
    get(json_.at(name), value);
  }
  template <typename T>
  void take(const char* name, Later<T>& later) {
    if (has(name)) get(json_[name], later.value);
  }
  template <typename Flag, typename T>
  void take(const char* name, Nullable<Flag, T>& nullable) {
    nullable.there = !json_.at(name).is_null();
    if (nullable.there) get(json_.at(name), nullable.value);
  }
  template <typename T>
  void take(const char* name, Bounded<T>& bounded) {
    const int64_t count = count_of(json_.at(name), bounded.most);
    if (count < bounded.least) {
      const std::string what = bounded.what ? bounded.what : fmt::format("'{}'", name);
      throw RunError(fmt::format("the number {} of {} is below {}", count, what, bounded.least));
    }
    bounded.value = T(count);
  }

  template <typename T>
  static void get(const Json& json, T& value) {
    if constexpr (requires(StateReader reader) { fields(reader, value); }) {
      StateReader reader(json);
      fields(reader, value);
    } else {
      json.get_to(value);
    }
  }
  static void get(const Json& json, double& value) { value = real_of(json); }
  static void get(const Json& json, int64_t& value) { value = count_of(json); }
  static void get(const Json& json, std::optional<MetricSpec::Better>& better) {
    if (json.is_string()) better = parse_better(json.get<std::string>());
  }
  static void get(const Json& json, RunEnd& end) { end = parse_run_end(json.get<std::string>()); }
  static void get(const Json& json, TargetReached& target) {
    target = {json.at(0).get<std::string>(), real_of(json.at(1))};
  }
  static void get(const Json& json, std::vector<std::string>& texts) { json.get_to(texts); }
  static void get(const Json& json, std::vector<std::pair<std::string, std::string>>& texts) { json.get_to(texts); }
  template <typename T>
  static void get(const Json& json, std::optional<T>& value) {
    if (!json.is_null()) get(json, value.emplace());
  }
  template <typename A, typename B>
  static void get(const Json& json, std::pair<A, B>& pair) {
    get(json.at(1), pair.second);
    get(json.at(0), pair.first);
  }
  template <typename T>
  static void get(const Json& json, std::vector<T>& values) {
    values.clear();
    for (const Json& value : json.get_ref<const Json::array_t&>()) get(value, values.emplace_back());
  }

  const Json& json_;
};

template <typename Visitor>
void fields(Visitor& visit, RecordOf<Validated> auto& event) {
  visit("epoch", event.epoch, "iteration", event.iteration, "samples", event.samples, "left_out", event.left_out,
        "seconds", event.seconds, "loss", event.loss, "loss_undefined", Later{event.loss_undefined}, "metrics",
        event.metrics, "parts", event.parts, "rate_factor", event.rate_factor);
}

template <typename Visitor>
void fields(Visitor& visit, RecordOf<EpochEnded> auto& event) {
  visit("epoch", event.epoch, "iteration", event.iteration, "seconds", event.seconds, "images_per_second",
        event.images_per_second, "loss", event.loss, "loss_undefined", Later{event.loss_undefined}, "metrics",
        event.metrics, "validates", event.validates);
}

template <typename Visitor>
void fields(Visitor& visit, RecordOf<HeldBack::Line> auto& line) {
  visit("end", line.end, "validation", line.validation, "ended", line.ended, "awaits_validation",
        line.awaits_validation);
}

template <typename Visitor>
void fields(Visitor& visit, RecordOf<HeldBack> auto& held) {
  visit("last_epoch", held.last_epoch);
  auto line = held.lines.begin();
  visit.list("lines", held.lines.size(), [&](auto& object, size_t) {
    int64_t epoch = Visitor::kReads ? 0 : line->first;
    object("epoch", epoch);
    if constexpr (Visitor::kReads) line = held.lines.try_emplace(epoch).first;
    fields(object, line++->second);
  });
}

template <typename Visitor>
void fields(Visitor& visit, RecordOf<MonitorState> auto& state) {
  visit("seconds", state.seconds);
  constexpr double kLongest = 1e9;  // seconds
  if (!(state.seconds >= 0 && state.seconds < kLongest)) throw RunError("the seconds of training are not possible");
  visit("last_seconds", state.last_seconds, "epoch_began", state.epoch_began, "last_images", state.last_images,
        "epoch_sums", state.epoch_sums, "last", Nullable{state.has_validated, state.last}, "best", state.best,
        "best_value", Nullable{state.has_best, state.best_value}, "better", Later{state.better}, "best_epoch",
        state.best_epoch, "best_iteration", state.best_iteration, "since_best", state.since_best, "since_drop",
        state.since_drop, "factors", state.factors, "drops", state.drops, "targets", state.targets);
  if (!visit.has("rollbacks")) return;  // a checkpoint of a version without them
  visit("rollbacks", state.rollbacks, "rollback_factor", state.rollback_factor, "skipped", state.skipped,
        "skipped_in_a_row", state.skipped_in_a_row);
}

template <typename Visitor>
void fields(Visitor& visit, RecordOf<RunPosition> auto& at) {
  visit("epoch", at.epoch, "iteration", at.iteration, "images", at.images, "epochs", at.epochs);
}

template <typename Visitor>
void fields(Visitor& visit, RecordOf<Cursor> auto& cursor) {
  constexpr int64_t kMostOfCursor = int64_t{1} << 40;  // as of a plan's clocks
  const auto natural = [](auto& count) { return Bounded{count, kMostOfCursor, 0}; };
  visit("epoch", natural(cursor.epoch), "batch", natural(cursor.batch), "iteration", natural(cursor.iteration),
        "images", natural(cursor.images), "validations", natural(cursor.validations), "rate_drops", cursor.rate_drops);
}

template <typename Visitor>
void fields(Visitor& visit, RecordOf<StrategyOptions> auto& strategy) {
  visit("kind", strategy.name);
  if constexpr (Visitor::kReads) strategy.name = known_strategy(strategy.name);
  visit("every", strategy.every, "every_hosts", Later{strategy.every_hosts}, "alpha", strategy.alpha, "beta",
        strategy.beta, "momentum", strategy.momentum, "follows_rate", Later{strategy.follows_rate});
}

template <typename Visitor>
void fields(Visitor& visit, RecordOf<MovingAverage> auto& average) {
  visit("decay", average.decay, "updates", average.updates, "within", average.within);
}

template <typename Visitor>
void fields(Visitor& visit, RecordOf<SegmentSnapshot> auto& segment) {
  auto& state = segment.state;
  visit("from", segment.from, "iterations", segment.at.iterations, "validations", segment.at.validations,
        "learners_per_device", Bounded{segment.learners, kMostLearners});
  visit.list("learners", state.learners.size(), [&](auto& object, size_t j) {
    if constexpr (Visitor::kReads) {
      state.learners.emplace_back();
      segment.updates.emplace_back();
      segment.corrections.emplace_back();
    }
    object("updates", state.learners[j].updates);
    if (object.has("host")) object("host", Bounded{state.learners[j].host, kMostHosts - 1, 0, "a host"});
    object("updates_before", segment.updates[j], "correction", segment.corrections[j]);
  });
  visit("averaged", state.averaged, "unaveraged", state.unaveraged);
  if constexpr (Visitor::kReads) state.apart = state.unaveraged;  // of files that do not say it
  visit("apart", Later{state.apart}, "moving_average", state.moving_average, "reported", segment.reported, "trained",
        segment.trained, "validated", segment.validated, "tallies", segment.tallies, "validating", segment.validating);
}

template <typename Visitor>
void fields(Visitor& visit, RecordOf<LearnerTuner::State> auto& tuner) {
  visit("learners", Bounded{tuner.learners, kMostLearners}, "before", Bounded{tuner.before, kMostLearners}, "best",
        tuner.best, "done", tuner.done);
}

template <typename Visitor>
void fields(Visitor& visit, RecordOf<CheckpointParts::Part> auto& part) {
  visit("first_learner", part.first_learner, "learners", part.learners, "host", Bounded{part.host, kMostHosts - 1});
}

template <typename Visitor>
void fields(Visitor& visit, RecordOf<CheckpointParts> auto& parts) {
  constexpr size_t kDigits = 16;
  visit("tag", parts.tag);
  if (parts.tag.size() != kDigits || parts.tag.find_first_not_of("0123456789abcdef") != parts.tag.npos) {
    throw RunError(
        fmt::format("found the tag '{}', expected {} hexadecimal digits", printable(parts.tag.substr(0, 20)), kDigits));
  }
  visit("ranks", parts.of_ranks);
}

template <typename Visitor>
void fields(Visitor& visit, RecordOf<Checkpoint> auto& checkpoint) {
  const bool alone = checkpoint.parts.of_ranks.empty();
  int64_t format = alone ? kFormat : kFormatOfParts;
  visit("format", format);
  if (format != kFormat && format != kFormatOfParts) {
    throw RunError(fmt::format("found a checkpoint of format {}, expected {} or {}", format, kFormat, kFormatOfParts));
  }
  auto& identity = checkpoint.identity;
  visit("settings", identity.settings, "graph", identity.graph, "class_names", Later{identity.class_names}, "changes",
        Later{checkpoint.changes}, "command", checkpoint.command, "folder", checkpoint.folder, "strategy",
        checkpoint.strategy, "next", checkpoint.next, "total_epochs", checkpoint.total_epochs, "position",
        checkpoint.position, "ended", checkpoint.ended, "segment", checkpoint.segment, "monitor", checkpoint.monitor,
        "held", checkpoint.held, "tuner", checkpoint.tuner, "validated",
        Nullable{checkpoint.keeps_validated, checkpoint.validated_at});
  if (format == kFormatOfParts) visit("parts", checkpoint.parts);
}

}  // namespace

Json to_json(const Checkpoint& checkpoint) {
  StateWriter writer;
  fields(writer, checkpoint);
  return std::move(writer.json);
}

Checkpoint checkpoint_from_json(const Json& json) {
  StateReader reader(json);
  Checkpoint checkpoint;
  fields(reader, checkpoint);
  return checkpoint;
}

}  // namespace arbalest
