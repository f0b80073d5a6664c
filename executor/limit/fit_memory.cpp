// SPDX-License-Identifier: Apache-2.0
#include "executor/limit/fit_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "executor/limit/recomputation_search.h"
#include "executor/plan/strategy.h"
#include "passes/pipeline.h"

namespace arbalest {
namespace {

Program with_again(const Program& program, const RecomputationSearch::Choice& choice, bool check = false) {
  Program changed = program;
  run_pass("recompute", changed, {.again = choice, .check = check});
  return changed;
}

// Bytes of a learner's activations, in the plan.
int64_t activation_bytes(const Plan& plan) {
  const Replica& learner = plan.handles.loops.front().replicas.front();
  const Graph& graph = plan.graphs[size_t(plan.handles.loops.front().graph)];
  const Table<ValueId, View> storage = shared_storage(graph);
  for (const ValueId v : graph.values.ids()) {
    const BufferId buffer = learner.placement.of[v].buffer;
    const bool packed = graph.values[storage[v].base].role == Role::Activation && buffer != kNone;
    if (packed) return plan.arenas[plan.buffers[buffer].arena].bytes;
  }
  return 0;
}

int32_t fullest(const Plan& plan) {
  int32_t most = 0;
  for (int32_t d = 1; d < int32_t(plan.devices.size()); ++d) {
    if (planned_bytes(plan, d) > planned_bytes(plan, most)) most = d;
  }
  return most;
}

int64_t peak_of(const Plan& plan) {
  return planned_bytes(plan, fullest(plan));
}

// The parts of a device's memory, largest first, described in terms of the options that determine them.
std::vector<std::pair<int64_t, std::string>> parts_of(const Plan& plan, int32_t device, const Loop& training,
                                                      int64_t learners) {
  const auto bytes_of = [&](ValueId value) {
    return value == kNone ? 0 : learners * training.graph.values[value].type.bytes();
  };
  const ArenaValues& arenas = training.arenas;
  int64_t slots = 0;
  for (const ArenaValues::Slot& slot : arenas.slots) slots += bytes_of(slot.value);
  // Gradients that are updated in parts have no arena: they are packed with the activations.
  const Placement& placement = plan.handles.loops.front().replicas.front().placement;
  const bool has_gradients = placement.of[arenas.gradients].buffer != kNone;
  const std::string of_learners = learners == 1 ? "of the learner" : fmt::format("of {} learners", learners);
  std::vector<std::pair<int64_t, std::string>> parts = {
      {bytes_of(arenas.weights) + bytes_of(arenas.weights_lowered), "weights " + of_learners},
      {has_gradients ? bytes_of(arenas.gradients) : 0, "gradients " + of_learners},
      {slots, "optimiser slots " + of_learners},
      {learners * activation_bytes(plan),
       (has_gradients ? "activations " : "activations and gradients ") + of_learners}};
  int64_t samples = 0, validation = 0;
  for (const SamplesOnDevice& kept : plan.handles.samples) {
    if (kept.device == device) samples += plan.arenas[kept.arena].bytes;
  }
  std::map<ArenaId, bool> seen;
  for (const LoopPlan& loop : plan.handles.loops) {
    if (loop.role == LoopRole::Train) continue;
    for (const Replica& replica : loop.replicas) {
      for (const Operand& operand : replica.placement.of) {
        if (replica.device != device || operand.buffer == kNone) continue;
        const ArenaId arena = plan.buffers[operand.buffer].arena;
        if (!std::exchange(seen[arena], true)) validation += plan.arenas[arena].bytes;
      }
    }
  }
  parts.emplace_back(samples, "samples that stay on the device (cache = \"device\" of Prefetch)");
  parts.emplace_back(validation, "validation, at the same time as training (Validate's batch)");
  int64_t rest = planned_bytes(plan, device);
  for (const auto& part : parts) rest -= part.first;
  parts.emplace_back(rest, "batches, averages and other state");
  std::erase_if(parts, [](const auto& part) { return part.first <= 0; });
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  return parts;
}

[[noreturn]] void fail_too_low(const Plan& least, const Program& program, const PlanRequest& request,
                               const MemoryLimit& limit, const Recomputation& cost) {
  const int32_t device = fullest(least);
  const int64_t bytes = planned_bytes(least, device) + limit.workspace;
  const std::string sentence = fmt::format(
      "a memory limit of {} is too low: {} needs at least {}{}, {}", size_text(limit.bytes),
      to_string(least.devices[size_t(device)]), size_text(bytes), limit.workspace > 0 ? "" : ", workspace apart",
      cost.values == 0 ? "and computing values again saves nothing" : "where " + to_string(cost));
  std::string parts = "; what takes it:";
  for (const auto& [part, what] : parts_of(least, device, program.training(), request.learners)) {
    parts += fmt::format("\n  {:>12}  {}", size_text(part), what);
  }
  if (limit.workspace > 0) parts += fmt::format("\n  {:>12}  workspace of kernels", size_text(limit.workspace));
  throw LimitTooLow(sentence, parts, bytes);
}

}  // namespace

Recomputation fit_memory(Program& program, const PlanRequest& request, const MemoryLimit& limit) {
  using Choice = RecomputationSearch::Choice;
  const int64_t most = limit.bytes - limit.workspace;
  const Plan plan = make_plan(program, request);
  if (peak_of(plan) <= most) return {.limit = limit.bytes};

  const PlanInputs in{program, request};
  bool branch = false;
  for (int32_t d = 0; d < in.devices(); ++d) branch = branch || has_branches(in, d);
  // The search works with the parts of the unchanged step. With nodes that are computed again, parts may end later, so
  // each choice that it finds is planned to make sure that it fits.
  RecomputationSearch search(program.training(), branch, in.strategy().cut_step(in).updates, limit.operations_per_byte);
  const auto planned = [&](const Choice& choice) { return make_plan(with_again(program, choice), request); };
  const auto needs = [&](const Choice& choice) { return peak_of(planned(choice)); };
  const auto fits = [&](const Choice& choice) { return needs(choice) <= most; };
  const int64_t others = peak_of(plan) - request.learners * activation_bytes(plan);
  const int64_t room = (most - others) / request.learners;  // of a learner's activations

  // Two searches run. One lowers the memory a little at a time and reaches the lowest peak. The other aims at the limit
  // directly, which adds less work if the limit leaves much memory. The choice with the least work is used.
  const std::vector<Choice> choices = search.descent();
  auto found = std::partition_point(choices.begin(), choices.end(), std::not_fn(fits));
  if (found == choices.end()) {
    // Once packed, a choice may need a little less memory than the next one: then the binary search has skipped it.
    std::vector<int64_t> bytes;
    std::transform(choices.begin(), choices.end(), std::back_inserter(bytes), needs);
    const auto fitting = std::find_if(bytes.begin(), bytes.end(), [&](int64_t each) { return each <= most; });
    if (fitting == bytes.end()) {
      const auto least = choices.begin() + (std::min_element(bytes.begin(), bytes.end()) - bytes.begin());
      const Choice lowest = choices.empty() ? Choice(program.training().graph.nodes.size(), false) : *least;
      fail_too_low(planned(lowest), program, request, limit, search.cost(lowest));
    }
    found = choices.begin() + (fitting - bytes.begin());
  }
  std::vector<Choice> enough = {*found};
  if (std::optional<Choice> straight = search.straight_to(room, fits)) enough.push_back(std::move(*straight));
  for (size_t i = 0, count = enough.size(); i < count; ++i) {
    Choice fewer = search.without_needless(enough[i], room);
    if (fits(fewer)) enough.push_back(std::move(fewer));
  }
  const Choice& least = *std::min_element(enough.begin(), enough.end(), [&](const Choice& a, const Choice& b) {
    return search.cost(a).work < search.cost(b).work;
  });
  Recomputation cost = search.cost(least);
  cost.limit = limit.bytes;
  program = with_again(program, least, limit.check);
  return cost;
}

std::string size_text(int64_t bytes) {
  constexpr int64_t kKiB = 1 << 10, kMiB = 1 << 20, kGiB = 1 << 30;
  const auto in = [&](int64_t unit, const char* name) {
    std::string number = fmt::format("{:.2f}", double(bytes) / double(unit));
    while (number.back() == '0') number.pop_back();
    if (number.back() == '.') number.pop_back();
    return fmt::format("{} {}", number, name);
  };
  return bytes >= kGiB   ? in(kGiB, "GiB")
         : bytes >= kMiB ? in(kMiB, "MiB")
         : bytes >= kKiB ? in(kKiB, "KiB")
                         : in(1, "B");
}

std::string to_string(const Recomputation& recomputation) {
  if (recomputation.values == 0) return "nothing is computed again";
  const double percent = 100 * recomputation.work;
  return fmt::format("{} value{} ({}) {} computed again in each step, about {} % more work", recomputation.values,
                     recomputation.values == 1 ? "" : "s", size_text(recomputation.bytes),
                     recomputation.values == 1 ? "is" : "are",
                     percent < 1 ? fmt::format("{:.1f}", percent) : fmt::format("{:.0f}", percent));
}

}  // namespace arbalest
