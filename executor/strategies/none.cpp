// SPDX-License-Identifier: Apache-2.0

// No synchronisation: every learner trains a model of its own, and the first learner's is validated and saved.

#include <algorithm>
#include <iterator>
#include <map>

#include "executor/plan/strategy.h"
#include "graph/op.h"

namespace arbalest {
namespace {

class Alone final : public Strategy {
 public:
  Alone() : Strategy({.name = kNoStrategy, .alone = true}) {}
  StepCut cut_step(const PlanInputs& in) const override;
};

// Parts of the parameters, each to be updated as soon as its gradients are there and nothing reads its weights any
// more: some sixteen, of 16 MiB at least, since each is a launch. Empty where the update is whole.
std::vector<UpdatePart> find_updates(const PlanInputs& in, NodeId update) {
  constexpr int64_t kLeast = 4 << 20, kMost = 16;  // elements; parts
  const Loop& loop = in.training();
  const Graph& graph = loop.graph;

  struct Member {
    NodeId made = kNone, last = kNone;  // what makes its gradient; the last that uses its gradient or its weights
    int64_t elements = 0;
  };
  std::map<int64_t, Member> members;  // by the offset of a parameter
  for (const Value& value : graph.values) {
    const int64_t elements = value.type.elements();
    if (value.view.base != loop.arenas.gradients || elements == 0) continue;
    members[value.view.offset_bytes / int64_t(sizeof(float))] = {value.producer, value.producer, elements};
  }
  const Table<ValueId, View> storage = shared_storage(graph);
  bool together = members.empty();
  const auto touch = [&](ValueId value, NodeId node) {
    if (value == kNone) return;
    const View& view = storage[value];
    const bool lowered = view.base == loop.arenas.weights_lowered;
    if (view.base != loop.arenas.gradients && view.base != loop.arenas.weights && !lowered) return;
    together = together || view.base == value;
    const int64_t element = view.offset_bytes / int64_t(lowered ? sizeof(bfloat16) : sizeof(float));
    NodeId& last = std::prev(members.upper_bound(element))->second.last;
    last = std::max(last, node);
  };
  for (NodeId n = 0; n < graph.nodes.end_id() && !together; ++n) {
    if (n == update) continue;
    for (const ValueId input : graph.nodes[n].inputs) touch(input, n);
    for (const ValueId output : graph.nodes[n].outputs) touch(output, n);
  }
  if (together) return {};

  // A part ends where a layer does: its memory is free then for the gradients of the next. A large one that is made
  // later than the next is a part by itself: see delay_gradients().
  const int64_t all = in.type_of(loop.arenas.weights).elements();
  const int64_t least = std::max(kLeast, (all + kMost - 1) / kMost);
  const auto is_apart = [&](auto member) {
    if (member == members.end() || std::next(member) == members.end()) return false;
    const int64_t bytes = member->second.elements * int64_t(sizeof(float));
    return bytes >= kLargeGradient && member->second.made > std::next(member)->second.made;
  };
  std::vector<UpdatePart> found;
  UpdatePart open;
  for (auto member = members.begin(); member != members.end(); ++member) {
    const auto next = std::next(member);
    const int64_t end = next == members.end() ? all : next->first;
    open.elements = end - open.offset;
    open.after = std::max(open.after, member->second.last);
    const int64_t gap = member->first + member->second.elements;
    if (gap < end) open.gaps.emplace_back(gap - open.offset, end - gap);
    const bool complete = next == members.end() || (open.elements >= least && next->second.made > open.after) ||
                          is_apart(member) || is_apart(next);
    if (!complete) continue;
    found.push_back(open);
    open = UpdatePart{.offset = end};
  }
  if (found.size() < 2) return {};
  return found;
}

StepCut Alone::cut_step(const PlanInputs& in) const {
  StepCut cut = Strategy::cut_step(in);
  cut.update = find_update_by_element(in);
  if (cut.update != kNone) cut.updates = find_updates(in, cut.update);
  return cut;
}

}  // namespace

std::unique_ptr<const Strategy> make_none() {
  return std::make_unique<Alone>();
}

}  // namespace arbalest
