#include "executor/plan/fit_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <queue>

#include "executor/plan/phases.h"
#include "executor/plan/step_memory.h"
#include "graph/op.h"

namespace arbalest {
namespace {

// Nodes to compute again, chosen one after the other: of all moves that would help, the one that takes most off what is
// above the limit for its work.
class Choice {
 public:
  Choice(const Loop& loop, int32_t linger, double operations_per_byte)
      : graph_(loop.graph),
        step_(loop, linger),
        chosen_(graph_.nodes.size(), false),
        work_(graph_.nodes.size(), 0),
        readers_(graph_.consumers()) {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const auto work = [&](const Node& node) {
        const Cost cost = cost_of(graph_, node);
        return std::max(cost.bytes, cost.flops / operations_per_byte);
      };
      step_work_ += work(graph_.nodes[n]);
      const Repetition& again = step_.repetitions().of(NodeId(n));
      if (!again.op) continue;
      Node repeated = graph_.nodes[n];
      repeated.op = again.op;
      repeated.inputs = again.inputs;
      repeated.outputs = again.outputs;
      repeated.attributes = again.attributes;
      work_[n] = again.view ? 0 : work(repeated);
      const bool helps = !again.view && std::any_of(again.outputs.begin(), again.outputs.end(), [&](ValueId output) {
        return output != kNone && step_.storage(output) != kNone && step_.read_later(step_.storage(output));
      });
      if (helps) candidates_.push_back(n);
    }
    worth_.resize(2 * candidates_.size());
  }

  // Choices for less and less memory, from none on: as long as moves help, each for somewhat less than the one before.
  std::vector<std::vector<bool>> descent() {
    start_anew();
    std::vector<std::vector<bool>> choices;
    int64_t peak = step_.need(chosen_, 0).peak;
    for (const double step : {0.02, 0.005, 0.001}) {
      while (reach(peak - int64_t(std::ceil(double(peak) * step)))) {
        peak = now_.peak;
        choices.push_back(chosen_);
      }
      if (now_.peak < peak) {  // on the way to where no move led
        peak = now_.peak;
        choices.push_back(chosen_);
      }
    }
    return choices;
  }

  // What is chosen for the limit at once; packed it needs a little more than lives at once, so that it is for less
  // until it `fits`. Nothing: it does not come there.
  std::optional<std::vector<bool>> straight_to(int64_t limit,
                                               const std::function<bool(const std::vector<bool>&)>& fits) {
    start_anew();
    constexpr int kMostTries = 12;
    for (int i = 0; i < kMostTries && reach(limit); ++i, limit -= limit / 200) {
      if (fits(chosen_)) return chosen_;
    }
    return {};
  }

  // Nodes that the limit is met without, those of most work first, are computed once only.
  std::vector<bool> without_needless(std::vector<bool> chosen, int64_t limit) const {
    std::vector<size_t> all;
    for (size_t n = 0; n < chosen.size(); ++n) {
      if (chosen[n]) all.push_back(n);
    }
    std::stable_sort(all.begin(), all.end(), [&](size_t a, size_t b) { return work_[a] > work_[b]; });
    for (const size_t n : all) {
      chosen[n] = false;
      if (step_.need(chosen, limit).peak > limit) chosen[n] = true;
    }
    return chosen;
  }

  Recomputation told(const std::vector<bool>& chosen) const {
    Recomputation told;
    double work = 0;
    const std::vector<NodeId> places = step_.repetitions().places(chosen);
    for (size_t n = 0; n < places.size(); ++n) {
      const Repetition& again = step_.repetitions().of(NodeId(n));
      if (places[n] == kNone || again.view) continue;
      work += work_[n];
      for (const ValueId output : again.outputs) {
        if (output == kNone || readers_[size_t(output)].empty()) continue;
        ++told.values;
        told.bytes += graph_.values[size_t(output)].type.bytes();
      }
    }
    told.work = work / step_work_;
    return told;
  }

 private:
  void start_anew() {
    chosen_.assign(chosen_.size(), false);
    worth_.assign(worth_.size(), std::numeric_limits<double>::max());  // to be looked at
  }

  // Until all that lives at once is within the limit. False where no single move helps any more.
  bool reach(int64_t limit) {
    now_ = step_.need(chosen_, limit);
    while (now_.excess > 0) {
      const std::optional<size_t> move = best_move(limit);
      if (!move) return false;
      make(*move, chosen_);
      now_ = step_.need(chosen_, limit);
    }
    return true;
  }

  // What a move is worth changes with every other, mostly to less: the best one of before is looked at again, and where
  // it is the best still, the others are not. They are, all of them, before none is found.
  std::optional<size_t> best_move(int64_t limit) {
    std::priority_queue<std::pair<double, size_t>> offers;
    for (size_t move = 0; move < worth_.size(); ++move) offers.emplace(worth_[move], move);
    while (!offers.empty()) {
      const size_t move = offers.top().second;
      offers.pop();
      worth_[move] = worth(move, limit);
      if (worth_[move] > 0 && (offers.empty() || worth_[move] >= offers.top().first)) return move;
    }
    const auto best = std::max_element(worth_.begin(), worth_.end());
    if (best == worth_.end() || *best <= 0) return {};
    return size_t(best - worth_.begin());
  }

  // What it takes off the excess for its work.
  double worth(size_t move, int64_t limit) const {
    std::vector<bool> after = chosen_;
    const double work = make(move, after);
    if (after == chosen_) return 0;
    return (now_.excess - step_.need(after, limit).excess) / std::max(work, 1.0);
  }

  // Of each candidate there are two moves: it is computed again, or no longer; and it is, while what is computed again
  // from it, which would need it early, is kept from now on. Returns the work that the move adds.
  double make(size_t move, std::vector<bool>& chosen) const {
    const size_t node = candidates_[move / 2];
    const bool keeps_readers = move % 2 == 1;
    if (chosen[node]) {
      if (!keeps_readers) chosen[node] = false;
      return keeps_readers ? 0 : -work_[node];
    }
    double work = 0;
    for (const ValueId output : step_.repetitions().of(NodeId(node)).outputs) {
      if (output == kNone || !keeps_readers) continue;
      for (const NodeId reader : readers_[size_t(output)]) {
        if (!chosen[size_t(reader)]) continue;
        chosen[size_t(reader)] = false;
        work -= work_[size_t(reader)];
      }
    }
    if (keeps_readers && work == 0) return 0;  // it is the other move
    std::vector<size_t> added;
    add_with_others(node, chosen, added);
    for (const size_t n : added) work += work_[n];
    return work;
  }

  // A node with what has to be computed again along with it: views of what it makes, and what makes its inputs where
  // nothing keeps these for long.
  void add_with_others(size_t node, std::vector<bool>& chosen, std::vector<size_t>& added) const {
    if (chosen[node]) return;
    chosen[node] = true;
    added.push_back(node);
    const Repetition& again = step_.repetitions().of(NodeId(node));
    for (const ValueId output : again.outputs) {
      if (output == kNone) continue;
      for (const NodeId reader : readers_[size_t(output)]) {
        const Repetition& of = step_.repetitions().of(reader);
        if (of.op && of.view) add_with_others(size_t(reader), chosen, added);
      }
    }
    for (const ValueId input : again.inputs) {
      const ValueId base = input == kNone ? kNone : step_.storage(input);
      if (base == kNone) continue;
      const NodeId producer = graph_.values[size_t(input)].producer;
      if (producer == kNone || !step_.repetitions().of(producer).op) continue;
      if (again.view || !step_.read_later(base)) add_with_others(size_t(producer), chosen, added);
    }
  }

  const Graph& graph_;
  const StepMemory step_;
  std::vector<bool> chosen_;  // by node
  std::vector<double> work_;  // by node, of its repetition: in bytes moved
  double step_work_ = 0;      // of the step as it is
  const std::vector<std::vector<NodeId>> readers_;
  std::vector<size_t> candidates_;
  std::vector<double> worth_;  // by move, when it was looked at last
  StepMemory::Need now_;
};

Program with_again(const Program& program, const std::vector<bool>& chosen) {
  Program changed = program;
  recompute(changed.training().graph, chosen);
  return changed;
}

// Bytes of a learner's activations, in the plan.
int64_t activation_bytes(const Plan& plan) {
  const Replica& learner = plan.handles.loops.front().replicas.front();
  const Graph& graph = plan.graphs[size_t(plan.handles.loops.front().graph)];
  const std::vector<View> storage = shared_storage(graph);
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const BufferId buffer = learner.placement.of[v].buffer;
    const bool packed = graph.values[size_t(storage[v].base)].role == Role::Activation && buffer != kNone;
    if (packed) return plan.arenas[size_t(plan.buffers[size_t(buffer)].arena)].bytes;
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

// Where a device's memory goes, in the words of those who set the options that it follows from; largest first.
std::vector<std::pair<int64_t, std::string>> parts_of(const Plan& plan, int32_t device, const Loop& training,
                                                      int64_t learners) {
  const auto bytes_of = [&](ValueId value) {
    return value == kNone ? 0 : learners * training.graph.values[size_t(value)].type.bytes();
  };
  const ArenaValues& arenas = training.arenas;
  int64_t slots = 0;
  for (const ArenaValues::Slot& slot : arenas.slots) slots += bytes_of(slot.value);
  const std::string of_learners = learners == 1 ? "of the learner" : fmt::format("of {} learners", learners);
  std::vector<std::pair<int64_t, std::string>> parts = {
      {bytes_of(arenas.weights) + bytes_of(arenas.weights_lowered), "weights " + of_learners},
      {bytes_of(arenas.gradients), "gradients " + of_learners},
      {slots, "optimiser slots " + of_learners},
      {learners * activation_bytes(plan), "activations " + of_learners}};
  int64_t samples = 0, validation = 0;
  for (const SamplesOnDevice& kept : plan.handles.samples) {
    if (kept.device == device) samples += plan.arenas[size_t(kept.arena)].bytes;
  }
  std::map<ArenaId, bool> seen;
  for (const LoopPlan& loop : plan.handles.loops) {
    if (loop.role == LoopRole::Train) continue;
    for (const Replica& replica : loop.replicas) {
      for (const Operand& operand : replica.placement.of) {
        if (replica.device != device || operand.buffer == kNone) continue;
        const ArenaId arena = plan.buffers[size_t(operand.buffer)].arena;
        if (!std::exchange(seen[arena], true)) validation += plan.arenas[size_t(arena)].bytes;
      }
    }
  }
  parts.emplace_back(samples, "samples that stay on the device (cache = \"device\" of Prefetch)");
  parts.emplace_back(validation, "validation, which runs beside training (Validate's batch)");
  int64_t rest = planned_bytes(plan, device);
  for (const auto& part : parts) rest -= part.first;
  parts.emplace_back(rest, "batches, averages and other state");
  std::erase_if(parts, [](const auto& part) { return part.first <= 0; });
  std::stable_sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  return parts;
}

[[noreturn]] void fail_too_low(const Plan& least, const Program& program, const PlanRequest& request,
                               const MemoryLimit& limit, const Recomputation& told) {
  const int32_t device = fullest(least);
  const int64_t bytes = planned_bytes(least, device) + limit.workspace;
  const std::string sentence =
      fmt::format("a memory limit of {} is too low: {} needs at least {}{}, where {}", size_text(limit.bytes),
                  to_string(least.devices[size_t(device)]), size_text(bytes),
                  limit.workspace > 0 ? "" : ", workspace apart", to_string(told));
  std::string parts = "; what takes it:";
  for (const auto& [part, what] : parts_of(least, device, program.training(), request.learners)) {
    parts += fmt::format("\n  {:>10}  {}", size_text(part), what);
  }
  if (limit.workspace > 0) parts += fmt::format("\n  {:>10}  workspace of kernels", size_text(limit.workspace));
  throw LimitTooLow(sentence, parts, bytes);
}

}  // namespace

Recomputation fit_memory(Program& program, const PlanRequest& request, const MemoryLimit& limit) {
  Recomputation none;
  none.limit = limit.bytes;
  const int64_t most = limit.bytes - limit.workspace;
  const Plan plan = make_plan(program, request);
  if (peak_of(plan) <= most) return none;

  const PlanInputs in{program, request};
  int32_t linger = 0;
  for (int32_t d = 0; d < in.devices(); ++d) linger = std::max(linger, has_branches(in, d) ? kLinger : 0);
  Choice choice(program.training(), linger, limit.operations_per_byte);
  const auto planned = [&](const std::vector<bool>& chosen) { return make_plan(with_again(program, chosen), request); };
  const auto fits = [&](const std::vector<bool>& chosen) { return peak_of(planned(chosen)) <= most; };
  const int64_t others = peak_of(plan) - request.learners * activation_bytes(plan);
  const int64_t room = (most - others) / request.learners;  // of a learner's activations

  // Two ways down: a little less memory at a time, which comes to the least, and straight to what the limit leaves,
  // which takes less work where that is much.
  const std::vector<std::vector<bool>> choices = choice.descent();
  const auto found = std::partition_point(choices.begin(), choices.end(), std::not_fn(fits));
  if (found == choices.end()) {
    const std::vector<bool> none(program.training().graph.nodes.size(), false);
    const std::vector<bool>& lowest = choices.empty() ? none : choices.back();
    fail_too_low(planned(lowest), program, request, limit, choice.told(lowest));
  }
  std::vector<std::vector<bool>> enough = {*found};
  if (std::optional<std::vector<bool>> straight = choice.straight_to(room, fits)) enough.push_back(*straight);
  const size_t count = enough.size();
  for (size_t i = 0; i < count; ++i) {
    std::vector<bool> fewer = choice.without_needless(enough[i], room);
    if (fits(fewer)) enough.push_back(std::move(fewer));
  }
  const auto least = std::min_element(enough.begin(), enough.end(), [&](const auto& a, const auto& b) {
    return choice.told(a).work < choice.told(b).work;
  });
  Recomputation told = choice.told(*least);
  told.limit = limit.bytes;
  program = with_again(program, *least);
  return told;
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
