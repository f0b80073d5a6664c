// SPDX-License-Identifier: Apache-2.0

// The proofs over plans: verify against a naive run, the critical cycle against known ones, leads against the farthest
// runs.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>

#include "base/error.h"
#include "executor/plan/plan.h"
#include "tests/executor/plan/random_plan.h"

namespace arbalest::plan_test {
namespace {

using test::add_edge;
using test::add_task;
using test::empty_plan;

std::string refusal(const Plan& plan) {
  try {
    verify(plan);
  } catch (const GraphError& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// "a → b → a": starts and ends with the same task, and each step is an edge of the plan.
bool names_a_cycle(const Plan& plan, const std::string& message) {
  const std::string head = "the cycle ", tail = " has no lag", arrow = " → ";
  const size_t begin = message.find(head) + head.size(), end = message.find(tail);
  if (message.find(head) == std::string::npos || end == std::string::npos) return false;
  std::vector<std::string> names;
  for (size_t at = begin; at <= end;) {
    const size_t next = std::min(message.find(arrow, at), end);
    names.push_back(message.substr(at, next - at));
    at = next + arrow.size();
  }
  for (size_t k = 0; k + 1 < names.size(); ++k) {
    bool found = false;
    for (const Edge& edge : plan.edges) {
      found = found || (plan.tasks[edge.from].name == names[k] && plan.tasks[edge.to].name == names[k + 1]);
    }
    if (!found) return false;
  }
  return names.size() >= 2 && names.front() == names.back();
}

TEST_CASE("allowed instances count those whose needs are complete") {
  std::mt19937 random(1);
  int crossings = 0;
  for (int round = 0; round < 200; ++round) {
    const Plan plan = test::random_plan(random);
    const test::Definition definition(plan);
    for (const Edge& edge : plan.edges) {
      crossings += edge.relation != kNone;
      for (int64_t completed = 0; completed <= definition.ticks(edge.from); ++completed) {
        int64_t allowed = 0;
        while (allowed < definition.ticks(edge.to) && definition.needs(edge, allowed) < completed) ++allowed;
        REQUIRE(std::min(allowed_instances(plan, edge, completed), definition.ticks(edge.to)) == allowed);
      }
    }
  }
  CHECK(crossings > 200);
}

TEST_CASE("verify accepts exactly the plans that run to the end") {
  std::mt19937 random(2);
  int live = 0, dead = 0;
  for (int round = 0; round < 4000; ++round) {
    const Plan plan = test::random_plan(random);
    const std::string message = refusal(plan);
    REQUIRE_MESSAGE((message.empty() == test::Definition(plan).runs_to_the_end()), "round ", round, ": ", message);
    (message.empty() ? live : dead) += 1;
    if (!message.empty()) REQUIRE_MESSAGE(names_a_cycle(plan, message), message);
  }
  CHECK(live > 1000);
  CHECK(dead > 500);
}

TEST_CASE("verify decides where least lags alone would not") {
  // Groups of 4. One way round reaches back a whole group, the other nothing: live, though the least lags sum to −2.
  Plan plan = empty_plan(16);
  plan.clocks.push_back({"sync", 4});
  plan.relations = {{0, 1, 4, 4}};
  const TaskId coarse_a = add_task(plan, "average a", 1, true), fine_a = add_task(plan, "step a", 0, false);
  const TaskId coarse_b = add_task(plan, "average b", 1, true), fine_b = add_task(plan, "step b", 0, false);
  add_edge(plan, coarse_a, fine_a, 0, 0);
  add_edge(plan, fine_a, coarse_b, 4, 0);
  add_edge(plan, coarse_b, fine_b, 0, 0);
  add_edge(plan, fine_b, coarse_a, 0, 0);
  CHECK(refusal(plan) == "");
  plan.edges[1].distance = 3;
  CHECK(contains(refusal(plan), "average a → step a → average b → step b → average a"));
}

TEST_CASE("verify refuses malformed edges and says where") {
  Plan plan = empty_plan(8);
  plan.clocks.push_back({"epoch", 2});
  plan.relations = {{0, 1, 4, 4}};
  const TaskId fill = add_task(plan, "fill", 0, true), step = add_task(plan, "step", 0, false);
  const TaskId report = add_task(plan, "report", 1, true);
  const auto with = [&](TaskId from, TaskId to, int64_t distance, RelationId relation, Edge::Needs needs) {
    Plan changed = plan;
    add_edge(changed, from, to, distance, relation, needs);
    return refusal(changed);
  };
  CHECK(with(fill, step, 0, kNone, Edge::Needs::Done) == "");
  CHECK(contains(with(fill, step, -1, kNone, Edge::Needs::Done), "'fill' → 'step' has the negative distance -1"));
  CHECK(contains(with(fill, step, 0, kNone, Edge::Needs::Issued), "only device tasks are issued"));
  CHECK(contains(with(step, fill, 1, kNone, Edge::Needs::Issued), "only device tasks are issued"));
  CHECK(contains(with(step, report, 0, kNone, Edge::Needs::Done), "without a relation"));
  CHECK(contains(with(fill, step, 0, 0, Edge::Needs::Done), "though both tasks belong to 'batch'"));
  CHECK(contains(with(fill, 7, 0, kNone, Edge::Needs::Done), "leads to no task"));
  CHECK(contains(with(step, step, 0, kNone, Edge::Needs::Done), "step → step"));
  plan.clocks[1].ticks = 3;
  CHECK(
      contains(with(step, report, 0, 0, Edge::Needs::Done), "needs instance 11 of 'step', whose clock 'batch' has 8"));
  plan.clocks[1].ticks = 2;
  plan.tasks[0].width = 33;
  CHECK(contains(refusal(plan), "width 33; expected 1 to 32"));
}

TEST_CASE("the critical cycle is the one with the most work per iteration") {
  Plan plan = empty_plan(1000);
  const TaskId fill = add_task(plan, "fill", 0, true), copy = add_task(plan, "copy", 0, false);
  const TaskId step = add_task(plan, "step", 0, false);
  plan.tasks[fill].microseconds = 500;
  plan.tasks[copy].microseconds = 40;
  plan.tasks[step].microseconds = 90;
  add_edge(plan, fill, fill, 8);
  add_edge(plan, fill, copy, 0);
  add_edge(plan, copy, copy, 1, kNone, Edge::Needs::Issued);
  add_edge(plan, copy, step, 0, kNone, Edge::Needs::Issued);
  add_edge(plan, step, step, 1, kNone, Edge::Needs::Issued);
  add_edge(plan, step, copy, 2, kNone, Edge::Needs::Issued);
  Cycle cycle = critical_cycle(plan);
  CHECK(cycle.edges == std::vector<EdgeId>{4});
  CHECK(cycle.bound() == doctest::Approx(90));
  plan.edges[5].distance = 1;  // one slot: copy and step take turns
  cycle = critical_cycle(plan);
  CHECK(cycle.edges.size() == 2);
  CHECK(cycle.microseconds == doctest::Approx(130));
  CHECK(cycle.lag == doctest::Approx(1));
  plan.edges[0].distance = 2;  // two decoders are too few
  CHECK(critical_cycle(plan).bound() == doctest::Approx(250));
  for (Task& task : plan.tasks) task.microseconds = 0;
  CHECK(critical_cycle(plan).edges.empty());
}

TEST_CASE("the lag of a cycle between clocks is its mean over all phases") {
  Plan plan = empty_plan(80);
  plan.clocks.push_back({"sync", 24});
  plan.relations = {{0, 1, 4, 10}};  // groups of 4, 4 and 2
  const TaskId step = add_task(plan, "step", 0, false), average = add_task(plan, "average", 1, false);
  plan.tasks[step].microseconds = 1;
  plan.tasks[average].microseconds = 100;
  add_edge(plan, step, average, 0, 0);
  add_edge(plan, average, step, 1, 0);
  verify(plan);
  const Cycle cycle = critical_cycle(plan);
  CHECK(cycle.edges.size() == 2);
  CHECK(cycle.microseconds == doctest::Approx(101));
  CHECK(cycle.lag == doctest::Approx(10.0 / 3).epsilon(0.03));
}

// The most that completions of edge.from get ahead, with edge.to held back at every possible place.
int64_t farthest_lead(const Plan& plan, const Edge& edge) {
  int64_t most = 0;
  for (int64_t held = 0; held <= plan.clocks[0].ticks; ++held) {
    Table<TaskId, int64_t> counts(plan.tasks.size(), 0);
    for (bool moved = true; moved;) {
      moved = false;
      for (const TaskId task : counts.ids()) {
        bool free = counts[task] < (task == edge.to ? held : plan.clocks[0].ticks);
        for (const Edge& in : plan.edges) {
          if (in.to == task && allowed_instances(plan, in, counts[in.from]) <= counts[task]) free = false;
        }
        counts[task] += free;
        moved = moved || free;
      }
    }
    most = std::max(most, counts[edge.from] - std::max<int64_t>(0, held - edge.distance));
  }
  return most;
}

TEST_CASE("leads are what the farthest runs reach") {
  std::mt19937 random(3);
  int checked = 0;
  for (int round = 0; round < 300; ++round) {
    Plan plan = empty_plan(24);
    const int tasks = test::pick(random, 2, 6);
    for (int k = 0; k < tasks; ++k) add_task(plan, fmt::format("t{}", k), 0, true);
    for (int k = 0; k + 1 < tasks; ++k) add_edge(plan, TaskId(k), TaskId(k + 1), 0);
    add_edge(plan, TaskId(tasks - 1), 0, test::pick(random, 1, 3));
    for (int k = 0; k < tasks; ++k) {
      const auto from = TaskId(test::pick(random, 0, tasks - 1)), to = TaskId(test::pick(random, 0, tasks - 1));
      add_edge(plan, from, to, from < to ? 0 : test::pick(random, 1, 4));
    }
    const Table<EdgeId, int64_t> leads = edge_leads(plan);
    for (const EdgeId id : plan.edges.ids()) {
      if (plan.edges[id].from == plan.edges[id].to) {
        CHECK(leads[id] == plan.edges[id].distance);
        continue;
      }
      REQUIRE(leads[id] == farthest_lead(plan, plan.edges[id]));
      ++checked;
    }
  }
  CHECK(checked > 1000);
  Plan plan = empty_plan(8);
  add_task(plan, "fill", 0, true);
  add_task(plan, "step", 0, true);
  add_edge(plan, 0, 1, 0);
  CHECK_THROWS_WITH_AS(edge_leads(plan), doctest::Contains("lies on no cycle"), GraphError);
}

}  // namespace
}  // namespace arbalest::plan_test
