// SPDX-License-Identifier: Apache-2.0
#include "tools/report/run_log.h"

#include <fmt/format.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/files/file.h"
#include "base/files/file_kind.h"
#include "base/shell_word.h"
#include "io/formats/json_error.h"
#include "io/formats/json_watch.h"

namespace arbalest {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMostFaults = 20;       // told of one by one
constexpr size_t kMostValues = 1000;  // names of one kind of points
constexpr int kDeepest = 8;           // objects and lists within each other
constexpr int kMostMembers = 50'000;  // of an object: to find one takes as long as there are others

// A description of a damaged line's fault.
struct Fault {
  std::string what;
};

std::string kind_of(const Json& value) {
  return value.is_string() ? fmt::format("'{}'", value.get<std::string>().substr(0, 40))
                           : std::string(value.type_name());
}

class LineWatch : public JsonWatch {
 public:
  bool start_object(size_t) override { return enter(); }
  bool start_array(size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }
  bool key(string_t&) override {
    if (++members_[depth_ - 1] > kMostMembers) {
      throw Fault{fmt::format("an object has more than {} members", kMostMembers)};
    }
    return true;
  }

 private:
  bool enter() {
    if (depth_ == kDeepest) throw Fault{fmt::format("objects and lists are nested more than {} deep", kDeepest)};
    members_[depth_++] = 0;
    return true;
  }
  bool leave() {
    --depth_;
    return true;
  }

  int depth_ = 0;
  int members_[kDeepest] = {};  // of the objects that are open
};

Json parse_line(const std::string& line, bool last) {
  LineWatch watch;
  nlohmann::json::sax_parse(line, &watch);
  Json event;
  try {
    event = Json::parse(line);
  } catch (const Json::exception& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 9: …": the caller adds the line's real number.
    const std::string what = message_of(error);
    const size_t at = what.find("column ");
    throw Fault{fmt::format("no JSON{}: {}",
                            last ? ", as the last line of a run that was cut off, or still goes on" : "",
                            at == what.npos ? what : what.substr(at))};
  }
  if (!event.is_object()) throw Fault{fmt::format("found {}, expected an object", kind_of(event))};
  if (!event.contains("event")) throw Fault{"an object without 'event'"};
  if (!event["event"].is_string()) throw Fault{fmt::format("'event' is {}, expected a name", kind_of(event["event"]))};
  return event;
}

double number(const Json& event, const char* key) {
  const auto found = event.find(key);
  if (found == event.end()) throw Fault{fmt::format("'{}' is missing", key)};
  if (!found->is_number()) throw Fault{fmt::format("'{}' is {}, expected a number", key, kind_of(*found))};
  return found->get<double>();
}

// A number, or null if it is missing or undefined.
Json optional_number(const Json& event, const char* key) {
  const auto found = event.find(key);
  return found == event.end() || found->is_null() ? Json() : Json(number(event, key));
}

Json text(const Json& event, const char* key) {
  const auto found = event.find(key);
  if (found == event.end()) throw Fault{fmt::format("'{}' is missing", key)};
  if (!found->is_string()) throw Fault{fmt::format("'{}' is {}, expected a text", key, kind_of(*found))};
  return *found;
}

Json no_points() {
  return {
      {"epochs", Json::array()}, {"iteration", Json::array()}, {"seconds", Json::array()}, {"values", Json::object()}};
}

class Run {
 public:
  explicit Run(const std::string& name)
      : data_({{"name", name},
               {"start", nullptr},
               {"progress", no_points()},
               {"epochs", no_points()},
               {"validations", no_points()},
               {"tunes", Json::array()},
               {"checkpoints", Json::array()},
               {"rollbacks", Json::array()},
               {"losses", Json::array()},
               {"end", nullptr},
               {"error", nullptr},
               {"skipped", 0},
               {"faults", Json::array()},
               {"faulty_lines", 0}}) {}

  bool empty() const { return lines_ == 0; }
  Json& data() { return data_; }

  // Adds an event. Throws Fault if its content does not fit its kind.
  void add(const Json& event) {
    static const std::map<std::string, void (Run::*)(const Json&)> kEvents = {
        {"start", &Run::start},       {"progress", &Run::progress},
        {"epoch", &Run::epoch},       {"validation", &Run::validation},
        {"tune", &Run::tune},         {"checkpoint", &Run::checkpoint},
        {"skipped", &Run::skipped},   {"end", &Run::end},
        {"error", &Run::error},       {"resume", &Run::resume},
        {"rollback", &Run::rollback}, {"kept", &Run::kept},
        {"lost", &Run::ranks},        {"returned", &Run::ranks}};
    const std::string name = event["event"];
    const auto found = kEvents.find(name);
    if (found == kEvents.end()) throw Fault{fmt::format("unknown event '{}'", name.substr(0, 40))};
    (this->*found->second)(event);
    ++lines_;
  }

  void add_fault(size_t line, const std::string& what) {
    const int count = data_["faulty_lines"].get<int>() + 1;
    data_["faulty_lines"] = count;
    if (count <= kMostFaults) data_["faults"].push_back(Json{{"line", line}, {"what", printable(what)}});
  }

 private:
  void start(const Json& event) {
    data_["start"] = event;
    data_["start"].erase("event");
    if (const auto per_epoch = event.find("iterations_per_epoch"); per_epoch != event.end() && per_epoch->is_number()) {
      per_epoch_ = per_epoch->get<double>();
    }
  }

  // A run that goes on states its options once more. They count only if this is the first line.
  void resume(const Json& event) {
    if (data_["start"].is_null()) start(event);
  }

  void progress(const Json& event) {
    double epochs = number(event, "epoch");
    if (event.contains("epochs")) {
      epochs = number(event, "epochs");
    } else if (per_epoch_ > 0) {
      epochs = number(event, "iteration") / per_epoch_;
    }
    add_point(data_["progress"], event, epochs);
  }

  void epoch(const Json& event) { add_point(data_["epochs"], event, number(event, "epoch")); }
  void validation(const Json& event) { add_point(data_["validations"], event, number(event, "epoch")); }

  // Adds a point. All members of an event are its values, except those for its kind and its position.
  void add_point(Json& points, const Json& event, double epochs) {
    static const std::set<std::string> kOthers = {"event",   "epoch",   "epochs", "iteration",
                                                  "seconds", "samples", "missed"};
    const double iteration = number(event, "iteration"), seconds = number(event, "seconds");
    std::vector<std::pair<std::string, double>> found;
    const auto take = [&](const std::string& name, const Json& value) {
      if (value.is_null()) return;  // undefined
      if (!value.is_number()) throw Fault{fmt::format("'{}' is {}, expected a number", name, kind_of(value))};
      found.emplace_back(name, value.get<double>());
    };
    Json& values = points["values"];
    for (const auto& [name, value] : event.items()) {
      if (kOthers.contains(name)) continue;
      if (name == "sample_microseconds" && value.is_object()) {
        for (const auto& [stage, time] : value.items()) take(stage + " µs a sample", time);
      } else {
        take(name, value);
      }
    }
    const size_t at = points["seconds"].size();
    points["epochs"].push_back(epochs);
    points["iteration"].push_back(iteration);
    points["seconds"].push_back(seconds);
    for (const auto& [name, value] : found) {
      if (!values.contains(name)) {
        if (values.size() >= kMostValues) throw Fault{fmt::format("more than {} values have names", kMostValues)};
        values[name] = {{"at", Json::array()}, {"value", Json::array()}};
      }
      values[name]["at"].push_back(at);
      values[name]["value"].push_back(value);
    }
  }

  void tune(const Json& event) {
    data_["tunes"].push_back({{"epoch", number(event, "epoch")},
                              {"iteration", number(event, "iteration")},
                              {"seconds", number(event, "seconds")},
                              {"learners", number(event, "learners")},
                              {"next_learners", number(event, "next_learners")},
                              {"images_per_second", optional_number(event, "images_per_second")},
                              {"strategy", text(event, "strategy")},
                              {"reason", text(event, "reason")}});
  }

  void checkpoint(const Json& event) {
    if (event.contains("whole")) return;  // no model that is saved
    data_["checkpoints"].push_back({{"epoch", number(event, "epoch")},
                                    {"iteration", number(event, "iteration")},
                                    {"seconds", number(event, "seconds")},
                                    {"path", text(event, "path")}});
  }

  // After a rollback the run goes on from that iteration: leaves out points after it.
  void rollback(const Json& event) {
    const double iteration = number(event, "iteration");
    data_["rollbacks"].push_back({{"iteration", iteration},
                                  {"from_iteration", number(event, "from_iteration")},
                                  {"seconds", number(event, "seconds")},
                                  {"reason", text(event, "reason")}});
    for (const char* kind : {"progress", "epochs", "validations"}) leave_out_after(data_[kind], iteration);
  }

  // Processes are lost or have come back, and the run goes on with other learners.
  void ranks(const Json& event) {
    data_["losses"].push_back({{"iteration", number(event, "iteration")},
                               {"seconds", number(event, "seconds")},
                               {"learners", number(event, "learners")},
                               {"reason", text(event, "reason")}});
  }

  static void leave_out_after(Json& points, double iteration) {
    const Json before = std::exchange(points, no_points());
    std::vector<size_t> place(before["iteration"].size(), SIZE_MAX);
    for (size_t i = 0; i < place.size(); ++i) {
      if (before["iteration"][i].get<double>() > iteration) continue;
      place[i] = points["iteration"].size();
      for (const char* of : {"epochs", "iteration", "seconds"}) points[of].push_back(before[of][i]);
    }
    for (const auto& [name, value] : before["values"].items()) {
      Json& kept = points["values"][name];
      kept = {{"at", Json::array()}, {"value", Json::array()}};
      for (size_t i = 0; i < value["at"].size(); ++i) {
        const size_t at = place[value["at"][i].get<size_t>()];
        if (at == SIZE_MAX) continue;
        kept["at"].push_back(at);
        kept["value"].push_back(value["value"][i]);
      }
    }
  }

  void kept(const Json&) {}  // of set-up, whose time the end has
  void skipped(const Json&) { data_["skipped"] = data_["skipped"].get<int64_t>() + 1; }

  void end(const Json& event) {
    Json targets = Json::array();
    if (const auto found = event.find("targets"); found != event.end() && found->is_array()) {
      for (const Json& target : *found) {
        if (!target.is_object()) throw Fault{fmt::format("a target is {}, expected an object", kind_of(target))};
        targets.push_back({{"target", text(target, "target")}, {"seconds", optional_number(target, "seconds")}});
      }
    }
    data_["end"] = {{"reason", text(event, "reason")},
                    {"epoch", number(event, "epoch")},
                    {"iteration", number(event, "iteration")},
                    {"seconds", number(event, "seconds")},
                    {"images_per_second", optional_number(event, "images_per_second")},
                    {"learners", optional_number(event, "learners")},
                    {"best_epoch", optional_number(event, "best_epoch")},
                    {"targets", targets}};
  }

  void error(const Json& event) {
    data_["error"] = {{"message", text(event, "message")}, {"seconds", optional_number(event, "seconds")}};
  }

  Json data_;
  int64_t lines_ = 0;     // that were read
  double per_epoch_ = 0;  // iterations; 0: unknown
};

}  // namespace

std::vector<RunLog> read_run_logs(const std::string& path, const std::string& name) {
  if (begins_with(path, kTraceStart)) {
    throw RunError(
        fmt::format("{}: found a trace that run --trace wrote, expected a log that run --log wrote: "
                    "it is shown by: arbalest view {}",
                    path, shell_word(path)));
  }
  const std::vector<std::string> lines = read_lines(path);
  std::vector<Run> runs = {Run(name)};
  for (size_t i = 0; i < lines.size(); ++i) {
    try {
      const Json event = parse_line(lines[i], i + 1 == lines.size());
      if (runs.front().empty() && event["event"] == "cell") {
        throw RunError(
            fmt::format("{}: found what bench scaling --json writes, expected a log that run --log wrote: "
                        "it is drawn by: arbalest report --plot scaling {}",
                        path, shell_word(path)));
      }
      if (runs.front().empty() && event["event"] == "sweep") {
        const std::string folder = std::filesystem::path(path).parent_path().string();
        throw RunError(
            fmt::format("{}: found the log of a sweep, expected a log that run --log wrote: the sweep is shown by: "
                        "arbalest report {}",
                        path, shell_word(folder.empty() ? "." : folder)));
      }
      const bool starts = event["event"] == "start";
      if (starts && !runs.back().empty()) runs.emplace_back(fmt::format("{} ({})", name, runs.size() + 1));
      const bool first = runs.back().empty();
      runs.back().add(event);
      if (first && !starts) {
        runs.back().add_fault(i + 1, "the log does not begin with the start of a run: options are unknown");
      }
    } catch (const Fault& fault) {
      runs.back().add_fault(i + 1, fault.what);
    }
  }
  if (runs.front().empty()) {
    const Json& faults = runs.front().data()["faults"];
    throw RunError(fmt::format("{}: found {}, expected a log that run --log wrote", path,
                               faults.empty() ? "an empty file"
                                              : fmt::format("no event; line {}: {}", faults[0]["line"].get<size_t>(),
                                                            faults[0]["what"].get<std::string>())));
  }
  std::vector<RunLog> logs;
  for (Run& run : runs) logs.push_back(std::move(run.data()));
  return logs;
}

}  // namespace arbalest
