// SPDX-License-Identifier: Apache-2.0
#include "tools/view/trace_json.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "executor/trace/layer_times.h"
#include "executor/trace/trace_record.h"

namespace arbalest {
namespace {

using Json = nlohmann::ordered_json;

const char* name_of(VerdictFigure::Where where) {
  switch (where) {
    case VerdictFigure::Where::Lane: return "lane";
    case VerdictFigure::Where::Task: return "task";
    case VerdictFigure::Where::Idle: return "idle";
    case VerdictFigure::Where::Cycle: return "cycle";
  }
  return "";
}

const char* name_of(Payoff::Kind kind) {
  switch (kind) {
    case Payoff::Kind::Halved: return "halved";
    case Payoff::Kind::Removed: return "removed";
    case Payoff::Kind::LayerHalved: return "layer halved";
    case Payoff::Kind::SlotMore: return "slot more";
    case Payoff::Kind::SlotLess: return "slot less";
  }
  return "";
}

Json verdict_json(const Verdict& verdict) {
  Json figures = Json::array();
  for (const VerdictFigure& figure : verdict.figures) {
    figures.push_back(
        {{"value", figure.value}, {"text", figure.text}, {"where", name_of(figure.where)}, {"id", figure.id}});
  }
  return {{"sentence", verdict.sentence}, {"notes", verdict.notes}, {"figures", std::move(figures)}};
}

Json reasons_json(const std::vector<IdleReason>& reasons) {
  Json list = Json::array();
  for (const IdleReason& reason : reasons) list.push_back({{"why", reason.why}, {"ns", reason.ns}});
  return list;
}

// Adds what became of the lanes to their records.
void add_times(Json& lanes, const TracedRun& run, const TraceSummary& summary) {
  for (const LaneSummary& lane : summary.lanes) {
    Json& json = lanes[size_t(lane.lane)];
    json["busy_ns"] = lane.busy_ns;
    json["idle_ns"] = lane.idle_ns;
    json["steady_ns"] = lane.steady_ns;
    json["steady_idle_ns"] = lane.steady_idle_ns;
    json["causes"] = Json::array();
    for (const IdleShare& share : lane.causes) {
      Json cause = {{"why", in_words(share.cause, run)}, {"ns", share.ns},     {"count", share.count},
                    {"steady_ns", share.steady_ns},      {"from", share.from}, {"to", share.to}};
      if (share.next != nullptr) {
        cause["task"] = share.next->task;
        cause["instance"] = share.next->instance;
      }
      json["causes"].push_back(std::move(cause));
    }
    json["reasons"] = reasons_json(lane.reasons);
    json["steady_reasons"] = reasons_json(lane.steady_reasons);
  }
}

// Mean and spread of each task's durations over instances with work.
struct Durations {
  int64_t count = 0;
  double mean = 0, squares = 0;  // squares: Σ (duration − mean)², as Welford sums it

  void add(double duration) {
    const double before = duration - mean;
    mean += before / double(++count);
    squares += before * (duration - mean);
  }
  double deviation() const { return count > 1 ? std::sqrt(squares / double(count - 1)) : 0; }
};

// The insides of tasks whose nodes were timed after the run, as lists of [launch, share of the task]. Learners do the
// same, so tasks share lists: `of_task` has the index of each task's list; −1: none.
struct Insides {
  std::vector<std::vector<NodeShare>> lists;
  Table<TaskId, int32_t> of_task;
};

Insides timed_insides(const TraceFile& trace) {
  Insides insides;
  insides.of_task.assign(trace.plan.tasks.size(), -1);
  std::map<std::vector<std::pair<std::string, double>>, int32_t> known;
  Table<TaskId, std::vector<NodeShare>> shares = node_shares(trace);
  for (const NodeTime& node : trace.timed) {
    int32_t& list = insides.of_task[node.task];
    if (list >= 0) continue;
    std::vector<NodeShare>& nodes = shares[node.task];
    std::vector<std::pair<std::string, double>> content;
    for (const NodeShare& one : nodes) content.emplace_back(trace.launches[size_t(one.launch)], one.share);
    const auto [place, first] = known.try_emplace(std::move(content), int32_t(insides.lists.size()));
    if (first) insides.lists.push_back(std::move(nodes));
    list = place->second;
  }
  return insides;
}

Json insides_json(const Insides& insides) {
  Json lists = Json::array();
  for (const std::vector<NodeShare>& nodes : insides.lists) {
    Json list = Json::array();
    for (const NodeShare& node : nodes) list.push_back({node.launch, std::round(node.share * 1e6) / 1e6});
    lists.push_back(std::move(list));
  }
  return lists;
}

void add_durations(Json& tasks, const TraceFile& trace, const TraceSummary& summary, const Insides& insides) {
  const Plan& plan = trace.plan;
  Table<TaskId, Durations> durations(plan.tasks.size());
  for (const TaskSpan& span : trace.tasks) {
    if (!has_work(span.instance, plan.tasks[span.task].every)) continue;
    durations[span.task].add(double(span.ended - span.started));
  }
  Table<TaskId, int64_t> longest(plan.tasks.size(), 0), total(plan.tasks.size(), 0);
  for (const TaskSummary& task : summary.tasks) {
    longest[task.task] = task.longest_ns;
    total[task.task] = task.total_ns;
  }
  for (const TaskId i : plan.tasks.ids()) {
    Json& json = tasks[size_t(i)];
    json["like"] = kind_of(plan.tasks[i]);
    json["count"] = durations[i].count;
    json["mean_ns"] = std::round(durations[i].mean);
    json["deviation_ns"] = std::round(durations[i].deviation());
    json["longest_ns"] = longest[i];
    json["total_ns"] = total[i];
    if (std::isfinite(summary.slack.tasks[i])) json["slack_us"] = summary.slack.tasks[i];
    if (!trace.alone.empty() && trace.alone[i] >= 0) json["alone_ns"] = trace.alone[i];
    if (insides.of_task[i] >= 0) json["inside"] = insides.of_task[i];
  }
}

Json pays_json(const WhatPays& pays) {
  Json changes = Json::array();
  for (const Payoff& change : pays.changes) {
    changes.push_back({{"kind", name_of(change.kind)},
                       {"change", change.change},
                       {"tasks", change.tasks},
                       {"layer", change.layer},
                       {"iteration_ns", std::round(change.iteration_ns)},
                       {"saved", change.saved}});
  }
  return {{"measured_ns", pays.measured_ns}, {"simulated_ns", pays.simulated_ns},
          {"spread", pays.spread},           {"error", pays.measured_ns > 0 ? pays.error() : 0},
          {"iterations", pays.iterations},   {"changes", std::move(changes)}};
}

Json layers_json(const TraceFile& trace) {
  Json layers = Json::array();
  for (const LayerTime& layer : layer_times(trace)) {
    layers.push_back({{"name", layer.name},
                      {"operator", layer.of},
                      {"forward_ns", layer.forward_ns},
                      {"backward_ns", layer.backward_ns}});
  }
  return layers;
}

Json sampling_json(const TraceFile& trace) {
  Json series = Json::array();
  for (const SampleSeries& one : trace.sampling.series) {
    const double highest = one.values.empty() ? 0 : *std::max_element(one.values.begin(), one.values.end());
    const double sum = std::accumulate(one.values.begin(), one.values.end(), 0.0);
    series.push_back({{"name", one.name},
                      {"device", one.device},
                      {"unit", one.unit},
                      {"most", one.most},
                      {"mean", one.values.empty() ? 0 : sum / double(one.values.size())},
                      {"highest", highest}});
  }
  return {{"interval_ms", trace.sampling.interval_ms}, {"note", trace.sampling.note}, {"series", std::move(series)}};
}

Json hiding_json(const TraceSummary& summary) {
  Json list = Json::array();
  for (const Hiding& part : summary.hiding) {
    if (part.lane == kNone) continue;
    list.push_back(
        {{"lane", part.lane}, {"busy_ns", part.busy_ns}, {"hidden_ns", part.hidden_ns}, {"waited_ns", part.waited_ns}});
  }
  return list;
}

}  // namespace

Json trace_json(const TraceFile& trace, const TraceSummary& summary, const WhatPays& pays) {
  const Cycle& critical = summary.critical;
  const Insides insides = timed_insides(trace);
  Json json = {
      {"graph", trace.graph},
      {"run", run_record(trace.run)},
      {"verdict", verdict_json(judge(trace, summary))},
      {"instances", trace.tasks.size()},
      {"dropped", trace.dropped},
      {"unfinished", trace.unfinished},
      {"begin_ns", summary.begin},
      {"end_ns", summary.end},
      {"steady",
       {{"first", summary.first_steady}, {"last", summary.last_steady}, {"iteration_ns", summary.iteration_ns}}},
      {"critical",
       {{"edges", critical.edges},
        {"work_ns", critical.microseconds * 1000},
        {"lag", critical.lag},
        {"bound_ns", critical.edges.empty() ? 0 : critical.bound() * 1000}}},
      {"hiding", hiding_json(summary)},
      {"layers", layers_json(trace)},
      {"insides", insides_json(insides)},
      {"sampling", sampling_json(trace)},
      {"pays", pays_json(pays)}};
  json.update(Json(plan_record(trace.plan)));
  json["devices"] = Json::array();
  json["hosts"] = Json::array();  // by device: devices of one machine have the same number
  for (const PlanDevice& device : trace.plan.devices) {
    json["devices"].push_back(to_string(device));
    json["hosts"].push_back(device.host_number);
  }
  add_times(json["lanes"], trace.run, summary);
  add_durations(json["tasks"], trace, summary, insides);
  for (const EdgeId i : trace.plan.edges.ids()) {
    if (const double slack = summary.slack.edges[i]; std::isfinite(slack)) json["edges"][size_t(i)]["slack_us"] = slack;
  }
  return json;
}

}  // namespace arbalest
