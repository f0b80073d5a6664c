#include "executor/trace_plan.h"

#include <fmt/format.h>

#include <array>
#include <string>
#include <vector>

#include "graph/error.h"
#include "io/json_error.h"

namespace arbalest {
namespace {

using nlohmann::json;

// Names of enumerators, in their order.
constexpr std::array kDeviceKinds = {"cpu", "cuda"};
constexpr std::array kLaneKinds = {"host", "compute", "copy_in", "copy_out", "validate", "collectives"};
constexpr std::array kTaskKinds = {"fill",       "copy_in",        "compute",  "average",
                                   "collective", "snapshot",       "copy_out", "validation_begin",
                                   "report",     "validation_end", "work"};
constexpr std::array kNeeds = {"issued", "done"};
constexpr std::array kWhys = {"data", "reuse", "lane", "self", "pace", "clock"};

template <typename Enum, size_t N>
const char* name_in(const std::array<const char*, N>& names, Enum value) {
  return names[size_t(value)];
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

Task task_of(const json& item) {
  Task task;
  task.name = item.at("name");
  task.kind = enumerator<Task::Kind>(kTaskKinds, item, "kind");
  task.lane = item.at("lane");
  task.clock = item.at("clock");
  task.width = item.at("width");
  task.every = item.value("every", 1);
  task.device = item.at("device");
  task.learner = item.at("learner");
  return task;
}

Edge edge_of(const json& item) {
  Edge edge;
  edge.from = item.at("from");
  edge.to = item.at("to");
  edge.distance = item.at("distance");
  edge.relation = item.at("relation");
  edge.needs = enumerator<Edge::Needs>(kNeeds, item, "needs");
  edge.why = enumerator<Edge::Why>(kWhys, item, "why");
  edge.what = item.at("what");
  return edge;
}

void check_index(int64_t index, size_t count, bool optional, const char* what) {
  if (index >= (optional ? kNone : 0) && index < int64_t(count)) return;
  throw GraphError(fmt::format("{} {} is out of range: there are {}", what, index, count));
}

void check(const Plan& plan) {
  for (const ClockRelation& relation : plan.relations) {
    check_index(relation.fine, plan.clocks.size(), false, "clock");
    check_index(relation.coarse, plan.clocks.size(), false, "clock");
    if (relation.group < 1 || relation.period < 1)
      throw GraphError("a clock relation's group and period must be positive");
  }
  for (const Lane& lane : plan.lanes) check_index(lane.device, plan.devices.size(), true, "device");
  for (const Task& task : plan.tasks) {
    check_index(task.lane, plan.lanes.size(), false, "lane");
    check_index(task.clock, plan.clocks.size(), false, "clock");
    if (task.every < 1) throw GraphError(fmt::format("task '{}' has work every {} instances", task.name, task.every));
  }
  for (const Edge& edge : plan.edges) {
    check_index(edge.from, plan.tasks.size(), false, "task");
    check_index(edge.to, plan.tasks.size(), false, "task");
    check_index(edge.relation, plan.relations.size(), true, "relation");
  }
}

}  // namespace

json plan_record(const Plan& plan) {
  json record = {{"devices", json::array()}, {"clocks", json::array()}, {"relations", json::array()},
                 {"lanes", json::array()},   {"tasks", json::array()},  {"edges", json::array()}};
  for (const PlanDevice& device : plan.devices) {
    record["devices"].push_back({{"kind", name_in(kDeviceKinds, device.kind)}, {"index", device.index}});
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
  return record;
}

Plan plan_of_record(const json& record) {
  const char* part = "";
  const auto items = [&](const char* key) -> const json& {
    part = key;
    return record.at(key);
  };
  Plan plan;
  try {
    for (const json& item : items("devices")) {
      plan.devices.push_back({enumerator<PlanDevice::Kind>(kDeviceKinds, item, "kind"), item.at("index")});
    }
    for (const json& item : items("clocks")) plan.clocks.push_back({item.at("name"), item.at("ticks")});
    for (const json& item : items("relations")) {
      plan.relations.push_back({item.at("fine"), item.at("coarse"), item.at("group"), item.at("period")});
    }
    for (const json& item : items("lanes")) {
      plan.lanes.push_back(
          {enumerator<Lane::Kind>(kLaneKinds, item, "kind"), item.at("device"), item.at("learner"), item.at("name")});
    }
    for (const json& item : items("tasks")) plan.tasks.push_back(task_of(item));
    for (const json& item : items("edges")) plan.edges.push_back(edge_of(item));
  } catch (const json::exception& error) {
    throw GraphError(fmt::format("the plan's {}: {}", part, message_of(error)));
  }
  check(plan);
  return plan;
}

}  // namespace arbalest
