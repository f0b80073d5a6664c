// SPDX-License-Identifier: Apache-2.0
#include "executor/trace/trace_record.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/formats/json_error.h"

namespace arbalest {
namespace {

using nlohmann::json;

// Names of enumerators, in their order.
constexpr std::array kDeviceKinds = {"cpu", "cuda"};
constexpr std::array kLaneKinds = {"host", "compute", "copy_in", "copy_out", "validate", "averaging", "collectives"};
constexpr std::array kTaskKinds = {"fill",     "copy_in",  "compute",          "average", "collective",     "snapshot",
                                   "copy_out", "hand_out", "validation_begin", "report",  "validation_end", "work"};
static_assert(kTaskKinds.size() == size_t(Task::Kind::Work) + 1);
constexpr std::array kMemories = {"device", "pinned"};
constexpr std::array kNeeds = {"issued", "done"};
constexpr std::array kWhys = {"data", "reuse", "lane", "self", "pace", "clock"};

constexpr int64_t kMostWidth = 1 << 16;  // instances of a task at once; instances between two with work
constexpr int64_t kMostBytes = int64_t{1} << 50;
// If a pattern of clocks is longer than kLongestPeriod, every tick of the run is visited, so their number is bounded
// too.
constexpr int64_t kLongestPeriod = int64_t{1} << 22, kMostTicksApart = int64_t{1} << 26;

// An index, or −1 for none; check() holds it against what there is.
int32_t index_of(const json& object, const char* key) {
  return int32_t(integer_of(object, key, kNone, INT32_MAX));
}

template <typename Enum, size_t N>
const char* name_in(const std::array<const char*, N>& names, Enum value) {
  return names[size_t(value)];
}

// Names of a trace are printed only.
std::string name_of(const json& item) {
  return printable(item.at("name").get<std::string>());
}

template <typename Enum, size_t N>
Enum enumerator(const std::array<const char*, N>& names, const json& object, const char* key) {
  const std::string name = object.at(key).template get<std::string>();
  for (size_t i = 0; i < N; ++i) {
    if (name == names[i]) return Enum(i);
  }
  const std::vector<std::string> known(names.begin(), names.end());
  throw GraphError(fmt::format("unknown {} '{}'{}", key, name, did_you_mean(name, known)));
}

// Traces of earlier versions call lanes that average on one device collectives, as those over all devices.
Lane lane_of(const json& item) {
  Lane lane{enumerator<Lane::Kind>(kLaneKinds, item, "kind"), index_of(item, "device"), index_of(item, "learner"),
            name_of(item)};
  if (lane.kind == Lane::Kind::Collectives && lane.device != kNone) lane.kind = Lane::Kind::Averaging;
  if (item.contains("spans")) {
    for (const json& device : item.at("spans")) {
      lane.spans.push_back(int32_t(whole_number(device, "spans", 0, INT32_MAX)));
    }
  }
  return lane;
}

Task task_of(const json& item) {
  Task task;
  task.name = name_of(item);
  task.kind = enumerator<Task::Kind>(kTaskKinds, item, "kind");
  task.lane = LaneId(index_of(item, "lane"));
  task.clock = ClockId(index_of(item, "clock"));
  task.width = int32_t(integer_of(item, "width", 1, kMostWidth));
  task.every = item.contains("every") ? int32_t(integer_of(item, "every", 1, kMostWidth)) : 1;
  task.device = index_of(item, "device");
  task.learner = index_of(item, "learner");
  task.reduced_bytes = item.contains("reduced_bytes") ? integer_of(item, "reduced_bytes", 0, kMostBytes) : 0;
  return task;
}

Arena arena_of(const json& item) {
  return {name_of(item), index_of(item, "device"), enumerator<Arena::Memory>(kMemories, item, "memory"),
          integer_of(item, "bytes", 0, kMostBytes)};
}

Edge edge_of(const json& item) {
  Edge edge;
  edge.from = TaskId(index_of(item, "from"));
  edge.to = TaskId(index_of(item, "to"));
  edge.distance = integer_of(item, "distance", 0, kMostTraceTicks);
  edge.relation = RelationId(index_of(item, "relation"));
  edge.needs = enumerator<Edge::Needs>(kNeeds, item, "needs");
  edge.why = enumerator<Edge::Why>(kWhys, item, "why");
  edge.what = printable(item.at("what").get<std::string>());
  return edge;
}

ClockRelation relation_of(const json& item) {
  return {ClockId(index_of(item, "fine")), ClockId(index_of(item, "coarse")),
          integer_of(item, "group", 1, kMostTraceTicks), integer_of(item, "period", 1, kMostTraceTicks)};
}

void check_index(int64_t index, size_t count, bool optional, const char* what) {
  if (index >= (optional ? kNone : 0) && index < int64_t(count)) return;
  throw GraphError(fmt::format("{} {} is out of range: there are {}", what, index, count));
}

// A relation of other clocks would be asked for ticks that it cannot have.
void check_relation(const Plan& plan, const Edge& edge) {
  if (edge.relation == kNone) return;
  const Task &from = plan.tasks[edge.from], &to = plan.tasks[edge.to];
  const ClockRelation& relation = plan.relations[edge.relation];
  const bool down = relation.fine == from.clock && relation.coarse == to.clock;
  const bool up = relation.coarse == from.clock && relation.fine == to.clock;
  if (down || up) return;
  throw GraphError(fmt::format("the edge from '{}' to '{}' has relation {}, which is not one of their clocks",
                               from.name, to.name, int32_t(edge.relation)));
}

void check(const Plan& plan) {
  int64_t most_ticks = 0;
  for (const Clock& clock : plan.clocks) most_ticks = std::max(most_ticks, clock.ticks);
  for (const ClockRelation& relation : plan.relations) {
    check_index(int64_t(relation.fine), plan.clocks.size(), false, "clock");
    check_index(int64_t(relation.coarse), plan.clocks.size(), false, "clock");
    int64_t product = 0;  // the last instance that a coarse tick stands for
    if (__builtin_mul_overflow(plan.clocks[relation.coarse].ticks + 1, relation.period, &product)) {
      throw GraphError(
          fmt::format("clock '{}' makes {} ticks, and a pattern of its relation has {}: more than can be counted",
                      plan.clocks[relation.coarse].name, plan.clocks[relation.coarse].ticks, relation.period));
    }
    if (relation.period > kLongestPeriod && most_ticks > kMostTicksApart) {
      throw GraphError(
          fmt::format("a pattern of {} ticks in a run of {} is longer than can be looked at: at most {} in {}",
                      relation.period, most_ticks, kLongestPeriod, kMostTicksApart));
    }
  }
  for (const Lane& lane : plan.lanes) check_index(lane.device, plan.devices.size(), true, "device");
  for (const Arena& arena : plan.arenas) check_index(arena.device, plan.devices.size(), true, "device");
  for (const Task& task : plan.tasks) {
    check_index(int64_t(task.lane), plan.lanes.size(), false, "lane");
    check_index(int64_t(task.clock), plan.clocks.size(), false, "clock");
    check_index(task.device, plan.devices.size(), true, "device");
  }
  for (const Edge& edge : plan.edges) {
    check_index(int64_t(edge.from), plan.tasks.size(), false, "task");
    check_index(int64_t(edge.to), plan.tasks.size(), false, "task");
    check_index(int64_t(edge.relation), plan.relations.size(), true, "relation");
    check_relation(plan, edge);
  }
}

double seconds_of(const json& object, const char* key) {
  const double seconds = number_of(object.at(key), key);
  if (seconds >= 0 && seconds <= kMostMicroseconds) return seconds;
  throw GraphError(fmt::format("'{}' is {} s, expected a number from 0 to {:g}", key, seconds, kMostMicroseconds));
}

// Texts of a trace are printed only.
std::string text_at(const json& object, const char* key) {
  return printable(object.at(key).get<std::string>());
}

std::vector<std::string> texts_at(const json& object, const char* key) {
  auto list = object.at(key).get<std::vector<std::string>>();
  for (std::string& one : list) one = printable(one);
  return list;
}

json timed_record(const std::vector<NodeTime>& timed) {
  json launches = json::array(), tasks = launches, times = launches;
  for (const NodeTime& node : timed) {
    launches.push_back(node.launch);
    tasks.push_back(node.task);
    times.push_back(node.ns);
  }
  return {{"launch", std::move(launches)}, {"task", std::move(tasks)}, {"ns", std::move(times)}};
}

std::vector<NodeTime> timed_of(const json& timed) {
  const auto launches = timed.at("launch").get<std::vector<int32_t>>();
  const auto tasks = timed.at("task").get<std::vector<TaskId>>();
  const auto times = timed.at("ns").get<std::vector<int64_t>>();
  if (launches.size() != tasks.size() || launches.size() != times.size()) {
    throw GraphError(fmt::format("the lists of 'timed' have {}, {} and {} elements, expected as many in each",
                                 launches.size(), tasks.size(), times.size()));
  }
  std::vector<NodeTime> found;
  for (size_t i = 0; i < times.size(); ++i) {
    found.push_back({launches[i], tasks[i], std::clamp<int64_t>(times[i], 0, int64_t(kMostMicroseconds) * 1000)});
  }
  return found;
}

json sampling_record(const Sampling& sampling) {
  json series = json::array();
  for (const SampleSeries& one : sampling.series) {
    series.push_back({{"name", one.name}, {"device", one.device}, {"unit", one.unit}, {"most", one.most}});
  }
  return {{"interval_ms", sampling.interval_ms}, {"note", sampling.note}, {"series", std::move(series)}};
}

Sampling sampling_of(const json& record, const Plan& plan) {
  Sampling sampling;
  sampling.interval_ms = integer_of(record, "interval_ms", 0, INT32_MAX);
  sampling.note = text_at(record, "note");
  for (const json& one : record.at("series")) {
    const auto device = int32_t(integer_of(one, "device", kNone, int64_t(plan.devices.size()) - 1));
    sampling.series.push_back(
        {text_at(one, "name"), device, text_at(one, "unit"), sample_of(one.at("most"), "most"), {}});
  }
  return sampling;
}

TracedRun run_of(const json& record) {
  TracedRun run = {text_at(record, "strategy"),
                   integer_of(record, "learners", 0, INT32_MAX),
                   integer_of(record, "iterations", 0, kMostTraceTicks),
                   integer_of(record, "first", 0, kMostTraceTicks),
                   parse_segment_begin(text_at(record, "begins")),
                   parse_run_end(text_at(record, "ended")),
                   text_at(record, "message"),
                   integer_of(record, "ended_after", -1, kMostTraceTicks)};
  if (!record.contains("command")) return run;  // of an earlier version
  run.command = texts_at(record, "command");
  run.started = text_at(record, "started");
  run.source = text_at(record, "source");
  run.precision = text_at(record, "precision");
  run.batch = integer_of(record, "batch", 0, INT32_MAX);
  run.models = texts_at(record, "models");
  if (!record.contains("ranks")) return run;  // the same
  run.ranks = integer_of(record, "ranks", 1, INT32_MAX);
  run.clock_error = integer_of(record, "clock_error", 0, int64_t(kMostMicroseconds) * 1000);
  if (record.contains("taken_bytes")) run.taken_bytes = integer_of(record, "taken_bytes", -1, kMostBytes);
  if (record.contains("timed_engines")) run.timed_engines = integer_of(record, "timed_engines", 0, INT32_MAX);
  return run;
}

}  // namespace

json run_record(const TracedRun& run) {
  return {{"strategy", run.strategy},
          {"learners", run.learners},
          {"iterations", run.iterations},
          {"first", run.first},
          {"begins", name_of(run.begins)},
          {"ended", name_of(run.ended)},
          {"message", run.message},
          {"ended_after", run.ended_after},
          {"command", run.command},
          {"started", run.started},
          {"source", run.source},
          {"precision", run.precision},
          {"batch", run.batch},
          {"models", run.models},
          {"ranks", run.ranks},
          {"clock_error", run.clock_error},
          {"taken_bytes", run.taken_bytes},
          {"timed_engines", run.timed_engines}};
}

int64_t integer_of(const json& object, const char* key, int64_t least, int64_t most) {
  return whole_number(object.at(key), key, least, most);
}

int64_t whole_number(const json& value, const char* name, int64_t least, int64_t most) {
  const bool fits =
      value.is_number_unsigned() ? value.get<uint64_t>() <= uint64_t(INT64_MAX) : value.is_number_integer();
  if (fits && value.get<int64_t>() >= least && value.get<int64_t>() <= most) return value.get<int64_t>();
  throw GraphError(fmt::format("'{}' is {}, expected a whole number from {} to {}", name,
                               value.dump(-1, ' ', true, json::error_handler_t::replace).substr(0, 60), least, most));
}

json plan_record(const Plan& plan) {
  json record = {{"devices", json::array()}, {"clocks", json::array()}, {"relations", json::array()},
                 {"lanes", json::array()},   {"tasks", json::array()},  {"edges", json::array()},
                 {"arenas", json::array()}};
  for (const PlanDevice& device : plan.devices) {
    record["devices"].push_back({{"kind", name_in(kDeviceKinds, device.kind)}, {"index", device.index}});
    if (device.host.empty()) continue;
    record["devices"].back()["host"] = device.host;
    record["devices"].back()["host_number"] = device.host_number;
  }
  for (const Clock& clock : plan.clocks) record["clocks"].push_back({{"name", clock.name}, {"ticks", clock.ticks}});
  for (const ClockRelation& relation : plan.relations) {
    record["relations"].push_back(
        {{"fine", relation.fine}, {"coarse", relation.coarse}, {"group", relation.group}, {"period", relation.period}});
  }
  for (const Lane& lane : plan.lanes) {
    record["lanes"].push_back({{"name", lane.name},
                               {"kind", name_in(kLaneKinds, lane.kind)},
                               {"device", lane.device},
                               {"learner", lane.learner}});
    if (!lane.spans.empty()) record["lanes"].back()["spans"] = lane.spans;
  }
  for (const Task& task : plan.tasks) {
    record["tasks"].push_back({{"name", task.name},
                               {"kind", name_in(kTaskKinds, task.kind)},
                               {"lane", task.lane},
                               {"clock", task.clock},
                               {"width", task.width},
                               {"every", task.every},
                               {"device", task.device},
                               {"learner", task.learner}});
    if (task.reduced_bytes > 0) record["tasks"].back()["reduced_bytes"] = task.reduced_bytes;
  }
  for (const Edge& edge : plan.edges) {
    record["edges"].push_back({{"from", edge.from},
                               {"to", edge.to},
                               {"distance", edge.distance},
                               {"relation", edge.relation},
                               {"needs", name_in(kNeeds, edge.needs)},
                               {"why", name_in(kWhys, edge.why)},
                               {"what", edge.what}});
  }
  for (const Arena& arena : plan.arenas) {
    record["arenas"].push_back({{"name", arena.name},
                                {"device", arena.device},
                                {"memory", name_in(kMemories, arena.memory)},
                                {"bytes", arena.bytes}});
  }
  return record;
}

Plan plan_of_record(const json& record) {
  const char* part = "";
  const auto items = [&](const char* key) -> const json& {
    part = key;
    return record.at(key);
  };
  Plan plan;
  std::map<std::string, int32_t> processes;  // traces of earlier versions do not say which of them shared a host
  try {
    for (const json& item : items("devices")) {
      const auto kind = enumerator<PlanDevice::Kind>(kDeviceKinds, item, "kind");
      plan.devices.push_back({kind, int32_t(integer_of(item, "index", 0, INT32_MAX))});
      if (!item.contains("host")) continue;
      PlanDevice& device = plan.devices.back();
      device.host = printable(item.at("host").get<std::string>());
      device.host_number = processes.emplace(device.host, int32_t(processes.size())).first->second;
      if (item.contains("host_number")) device.host_number = int32_t(integer_of(item, "host_number", 0, INT32_MAX));
    }
    for (const json& item : items("clocks")) {
      plan.clocks.push_back({name_of(item), integer_of(item, "ticks", 0, kMostTraceTicks)});
    }
    for (const json& item : items("relations")) plan.relations.push_back(relation_of(item));
    for (const json& item : items("lanes")) plan.lanes.push_back(lane_of(item));
    for (const json& item : items("tasks")) plan.tasks.push_back(task_of(item));
    for (const json& item : items("edges")) plan.edges.push_back(edge_of(item));
    if (record.contains("arenas")) {  // of earlier versions they are not known
      for (const json& item : items("arenas")) plan.arenas.push_back(arena_of(item));
    }
  } catch (const json::exception& error) {
    throw GraphError(fmt::format("the plan's {}: {}", part, message_of(error)));
  } catch (const GraphError& error) {
    throw GraphError(fmt::format("the plan's {}: {}", part, error.what()));
  }
  check(plan);
  return plan;
}

double number_of(const json& value, const char* name) {
  if (value.is_number()) return value.get<double>();
  throw GraphError(fmt::format("'{}' is of type {}, expected a number", name, value.type_name()));
}

double sample_of(const json& value, const char* name) {
  constexpr double kMost = 1e18;
  const double number = number_of(value, name);
  if (number >= -kMost && number <= kMost) return number;
  throw GraphError(fmt::format("'{}' is {}, expected a number from {:g} to {:g}", name, number, -kMost, kMost));
}

json trace_record(const TraceFile& trace) {
  return {{"plan", plan_record(trace.plan)},
          {"graph", trace.graph},
          {"run", run_record(trace.run)},
          {"launches", trace.launches},
          {"operators", trace.operators},
          {"threads", {{"host", trace.threads.host}, {"issuing", trace.threads.issuing}}},
          {"reading",
           {{"samples", trace.reading.samples},
            {"read", trace.reading.read},
            {"decode", trace.reading.decode},
            {"scale", trace.reading.scale}}},
          {"alone", trace.alone},
          {"timed", timed_record(trace.timed)},
          {"sampling", sampling_record(trace.sampling)},
          {"dropped", trace.dropped},
          {"unfinished", trace.unfinished}};
}

void take_record(const json& record, TraceFile& trace) {
  trace.plan = plan_of_record(record.at("plan"));
  trace.graph = text_at(record, "graph");
  trace.launches = texts_at(record, "launches");
  if (record.contains("operators")) trace.operators = texts_at(record, "operators");
  if (const auto run = record.find("run"); run != record.end()) trace.run = run_of(*run);
  if (const auto threads = record.find("threads"); threads != record.end()) {
    trace.threads = {int32_t(integer_of(*threads, "host", 0, kMostTraceThreads)),
                     int32_t(integer_of(*threads, "issuing", 0, kMostTraceThreads))};
  }
  if (const auto reading = record.find("reading"); reading != record.end()) {
    trace.reading = {
        integer_of(*reading, "samples", 0, INT64_MAX), seconds_of(*reading, "read"), seconds_of(*reading, "decode"),
        seconds_of(*reading, reading->contains("scale") ? "scale" : "transform")};  // the latter: of earlier versions
  }
  if (const auto alone = record.find("alone"); alone != record.end()) {
    trace.alone = Table<TaskId, int64_t>(alone->get<std::vector<int64_t>>());
    for (int64_t& time : trace.alone) time = std::clamp<int64_t>(time, -1, int64_t(kMostMicroseconds) * 1000);
  }
  if (const auto timed = record.find("timed"); timed != record.end()) trace.timed = timed_of(*timed);
  if (const auto sampling = record.find("sampling"); sampling != record.end()) {
    trace.sampling = sampling_of(*sampling, trace.plan);
  }
  trace.dropped = integer_of(record, "dropped", 0, INT64_MAX);
  trace.unfinished = integer_of(record, "unfinished", 0, INT64_MAX);
}

}  // namespace arbalest
