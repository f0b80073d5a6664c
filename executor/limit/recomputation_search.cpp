// SPDX-License-Identifier: Apache-2.0
#include "executor/limit/recomputation_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>

#include "graph/op.h"

namespace arbalest {

RecomputationSearch::RecomputationSearch(const Loop& loop, bool branch, const std::vector<UpdatePart>& updates,
                                         double operations_per_byte)
    : graph_(loop.graph),
      step_(loop, branch, updates),
      operations_per_byte_(operations_per_byte),
      readers_(graph_.consumers()),
      work_(graph_.nodes.size(), 0) {
  for (const NodeId n : graph_.nodes.ids()) {
    step_work_ += work_of(graph_.nodes[n]);
    const Repetition& again = step_.repetitions().of(n);
    if (!again.op || again.view) continue;
    Node repeated = graph_.nodes[n];
    repeated.op = again.op;
    repeated.inputs = again.inputs;
    repeated.outputs = again.outputs;
    repeated.attributes = again.attributes;
    work_[n] = work_of(repeated);
  }
  find_candidates();
}

double RecomputationSearch::work_of(const Node& node) const {
  const Cost cost = cost_of(graph_, node);
  return std::max(cost.bytes, cost.flops / operations_per_byte_);
}

// Nodes that make what is read after the forward pass. Of very many those that make most, since each is looked at
// often.
void RecomputationSearch::find_candidates() {
  constexpr size_t kMost = 1000;
  Table<NodeId, int64_t> bytes(graph_.nodes.size(), 0);
  for (const NodeId n : graph_.nodes.ids()) {
    const Repetition& again = step_.repetitions().of(n);
    if (!again.op || again.view) continue;
    for (const ValueId output : again.outputs) {
      const ValueId base = output == kNone ? kNone : step_.storage(output);
      if (base != kNone && step_.read_later(base)) bytes[n] += graph_.values[output].type.bytes();
    }
    if (bytes[n] > 0) candidates_.push_back(n);
  }
  std::stable_sort(candidates_.begin(), candidates_.end(), [&](NodeId a, NodeId b) { return bytes[a] > bytes[b]; });
  candidates_.resize(std::min(candidates_.size(), kMost));
  std::sort(candidates_.begin(), candidates_.end());
}

std::vector<RecomputationSearch::Choice> RecomputationSearch::descent() {
  start_anew();
  std::vector<Choice> choices;
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

std::optional<RecomputationSearch::Choice> RecomputationSearch::straight_to(
    int64_t limit, const std::function<bool(const Choice&)>& fits) {
  start_anew();
  constexpr int kMostTries = 12;
  for (int i = 0; i < kMostTries && reach(limit); ++i, limit -= limit / 200) {
    if (fits(chosen_)) return chosen_;
  }
  return {};
}

RecomputationSearch::Choice RecomputationSearch::without_needless(Choice choice, int64_t limit) const {
  std::vector<NodeId> all;
  for (const NodeId n : choice.ids()) {
    if (choice[n]) all.push_back(n);
  }
  std::stable_sort(all.begin(), all.end(), [&](NodeId a, NodeId b) { return work_[a] > work_[b]; });
  for (const NodeId n : all) {
    choice[n] = false;
    if (step_.need(choice, limit).peak > limit) choice[n] = true;
  }
  return choice;
}

Recomputation RecomputationSearch::cost(const Choice& choice) const {
  Recomputation cost;
  double work = 0;
  const Table<NodeId, NodeId> places = step_.repetitions().places(choice);
  for (const NodeId n : places.ids()) {
    const Repetition& again = step_.repetitions().of(n);
    if (places[n] == kNone || again.view) continue;
    work += work_[n];
    for (const ValueId output : again.outputs) {
      if (output == kNone || readers_[output].empty()) continue;
      ++cost.values;
      cost.bytes += graph_.values[output].type.bytes();
    }
  }
  cost.work = work / step_work_;
  return cost;
}

void RecomputationSearch::start_anew() {
  chosen_.assign(graph_.nodes.size(), false);
  worth_.assign(2 * candidates_.size(), std::numeric_limits<double>::max());  // to be looked at
}

// Moves until all that lives at once is within the limit. False if none helps any more.
bool RecomputationSearch::reach(int64_t limit) {
  now_ = step_.need(chosen_, limit);
  while (now_.excess > 0) {
    const std::optional<size_t> move = best_move(limit);
    if (!move) return false;
    make(*move, chosen_);
    now_ = step_.need(chosen_, limit);
  }
  return true;
}

// Finds the move that is worth most; none if no move helps. The worth of a move changes with every other move and
// usually falls. So the moves are evaluated again from the previously best one on, until one is still at least as good
// as the old worth of the next. If none is found that way, all have been evaluated.
std::optional<size_t> RecomputationSearch::best_move(int64_t limit) {
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

// The bytes that a move takes off the excess, divided by the work that it adds.
double RecomputationSearch::worth(size_t move, int64_t limit) const {
  Choice after = chosen_;
  const double work = make(move, after);
  if (after == chosen_) return 0;
  return (now_.excess - step_.need(after, limit).excess) / std::max(work, 1.0);
}

// Applies a move and returns the work that it adds. Each candidate has two moves. The even one toggles whether the node
// is computed again. The odd one computes it again, and keeps the results of recomputed nodes that read it, since these
// would need it early.
double RecomputationSearch::make(size_t move, Choice& choice) const {
  const NodeId node = candidates_[move / 2];
  const bool keeps_readers = move % 2 == 1;
  if (choice[node]) {
    if (keeps_readers) return 0;
    choice[node] = false;
    return -work_[node];
  }
  double work = 0;
  bool kept = false;
  for (const ValueId output : step_.repetitions().of(node).outputs) {
    if (output == kNone || !keeps_readers) continue;
    for (const NodeId reader : readers_[output]) {
      if (!choice[reader]) continue;
      choice[reader] = false;
      work -= work_[reader];
      kept = true;
    }
  }
  if (keeps_readers && !kept) return 0;  // it is the other move
  return work + add_with_others(node, choice);
}

// Chooses a node with what has to be computed again along with it: views of what it makes, and what makes its inputs
// if nothing keeps these for long. Returns the work of all.
double RecomputationSearch::add_with_others(NodeId node, Choice& choice) const {
  double work = 0;
  std::vector<NodeId> added;
  const auto add = [&](NodeId other) {
    if (choice[other]) return;
    choice[other] = true;
    work += work_[other];
    added.push_back(other);
  };
  add(node);
  for (size_t next = 0; next < added.size(); ++next) {
    const Repetition& again = step_.repetitions().of(added[next]);
    for (const ValueId output : again.outputs) {
      if (output == kNone) continue;
      for (const NodeId reader : readers_[output]) {
        const Repetition& of = step_.repetitions().of(reader);
        if (of.op && of.view) add(reader);
      }
    }
    for (const ValueId input : again.inputs) {
      const ValueId base = input == kNone ? kNone : step_.storage(input);
      if (base == kNone) continue;
      const NodeId producer = graph_.values[input].producer;
      if (producer == kNone || !step_.repetitions().of(producer).op) continue;
      if (again.view || !step_.read_later(base)) add(producer);
    }
  }
  return work;
}

}  // namespace arbalest
