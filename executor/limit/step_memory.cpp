// SPDX-License-Identifier: Apache-2.0
#include "executor/limit/step_memory.h"

#include <algorithm>

#include "executor/plan/phases.h"
#include "graph/op.h"

namespace arbalest {

StepMemory::StepMemory(const Loop& loop, bool branch, const std::vector<UpdatePart>& updates)
    : graph_(loop.graph),
      repetitions_(graph_),
      branch_(branch),
      storage_(graph_.values.size(), kNone),
      bytes_(graph_.values.size(), 0),
      read_later_(graph_.values.size(), false),
      aside_(branch ? nodes_aside(graph_) : Table<NodeId, bool>(graph_.nodes.size())) {
  const Table<ValueId, View> shared = shared_storage(graph_);
  for (const ValueId v : storage_.ids()) {
    const ValueId base = shared[v].base;
    if (graph_.values[base].role == Role::Activation) storage_[v] = base;
    bytes_[v] = aligned(graph_.values[v].type.bytes());
  }
  for (const NodeId n : graph_.nodes.ids()) {
    const Node& node = graph_.nodes[n];
    nodes_.push_back(packed(*node.op, node.inputs, node.outputs));
    const Repetition& again = repetitions_.of(n);
    again_.push_back(again.op ? packed(*again.op, again.inputs, again.outputs) : Operands{});
    if (node.stage == Stage::Forward) continue;
    for (const ValueId input : nodes_[n].inputs) read_later_[storage_[input]] = true;
  }
  for (const UpdatePart& part : updates) {
    Gradients& gradients = gradients_.emplace_back(Gradients{part.after, part.after, part.bytes()});
    for (const Value& value : graph_.values) {
      if (value.view.base != loop.arenas.gradients || !part.holds(value.view.offset_bytes)) continue;
      gradients.first = std::min(gradients.first, value.producer);
    }
  }
  for (const ValueId output : graph_.outputs) {
    if (storage_[output] != kNone) read_later_[storage_[output]] = true;
  }
}

StepMemory::Operands StepMemory::packed(const Op& op, const std::vector<ValueId>& inputs,
                                        const std::vector<ValueId>& outputs) const {
  Operands operands;
  const auto is_packed = [&](ValueId value) { return value != kNone && storage_[value] != kNone; };
  std::copy_if(inputs.begin(), inputs.end(), std::back_inserter(operands.inputs), is_packed);
  std::copy_if(outputs.begin(), outputs.end(), std::back_inserter(operands.outputs), is_packed);
  for (const auto& [output, input] : op.aliases) {
    if (size_t(output) >= outputs.size() || size_t(input) >= inputs.size()) continue;
    const ValueId to = outputs[size_t(output)], from = inputs[size_t(input)];
    if (is_packed(to) && is_packed(from)) operands.views.emplace_back(to, from);
  }
  for (const auto& [output, input] : op.overwrites) {
    if (size_t(output) >= outputs.size() || size_t(input) >= inputs.size()) continue;
    const ValueId to = outputs[size_t(output)], from = inputs[size_t(input)];
    const bool over = is_packed(to) && is_packed(from) && storage_[to] == storage_[from];
    if (over) operands.views.emplace_back(to, from);
  }
  return operands;
}

// The nodes of a step in their order, with those that are computed again among them. Bases of values that are made
// again have numbers after those of all values.
class StepMemory::Walk {
 public:
  Walk(const StepMemory& step, const Table<NodeId, bool>& chosen)
      : step_(step), lives_(2 * step.storage_.size() + step.gradients_.size()), later_(step.storage_) {
    const Table<NodeId, NodeId> places = step.repetitions_.places(chosen);
    std::vector<std::pair<NodeId, NodeId>> again;  // (what it precedes, the node)
    for (const NodeId n : places.ids()) {
      if (places[n] != kNone) again.emplace_back(places[n], n);
    }
    std::sort(again.begin(), again.end());
    auto next = again.begin();
    for (const NodeId n : places.ids()) {
      for (; next != again.end() && next->first == n; ++next) repeat(next->second);
      run(n);
    }
    for (const ValueId output : step.graph_.outputs) touch(step.storage_[output]);
  }

  // By position: bytes that live there, less those at the position before.
  std::vector<int64_t> changes() const {
    std::vector<int64_t> changes(size_t(position_) + 2, 0);
    for (const ValueId base : lives_.ids()) {
      const Life& life = lives_[base];
      if (life.first < 0) continue;
      const int64_t bytes = bytes_of(base);
      changes[size_t(life.first)] += bytes;
      changes[size_t(std::min(life.last, position_)) + 1] -= bytes;
    }
    return changes;
  }

 private:
  int64_t bytes_of(ValueId base) const {
    const size_t values = step_.bytes_.size();
    return size_t(base) < 2 * values ? step_.bytes_[ValueId(size_t(base) % values)]
                                     : aligned(step_.gradients_[size_t(base) - 2 * values].bytes);
  }
  void touch(ValueId base, int32_t linger = 0) {
    if (base == kNone) return;
    Life& life = lives_[base];
    if (life.first < 0) life.first = position_;
    life.last = std::max(life.last, position_ + linger);
  }

  void run(NodeId node) {
    const Operands& operands = step_.nodes_[node];
    const bool forward = step_.graph_.nodes[node].stage == Stage::Forward;
    const Table<ValueId, ValueId>& where = forward ? step_.storage_ : later_;
    for (const auto& [output, input] : operands.views) {
      if (!forward) later_[output] = later_[input];
    }
    for (const ValueId input : operands.inputs) {
      const ValueId base = where[input];
      touch(base, step_.aside_[node] ? linger_of(bytes_of(base)) : 0);
    }
    for (const ValueId output : operands.outputs) touch(where[output]);
    for (size_t i = 0; i < step_.gradients_.size(); ++i) {
      const auto base = ValueId(2 * step_.storage_.size() + i);
      if (step_.gradients_[i].first == node) touch(base);
      if (step_.gradients_[i].last == node) touch(base, step_.branch_ ? linger_of(step_.gradients_[i].bytes) : 0);
    }
    ++position_;
  }

  void repeat(NodeId node) {
    const Operands& operands = step_.again_[node];
    for (const ValueId input : operands.inputs) touch(later_[input]);
    for (const ValueId output : operands.outputs) later_[output] = output + int32_t(step_.storage_.size());
    for (const auto& [output, input] : operands.views) later_[output] = later_[input];
    for (const ValueId output : operands.outputs) touch(later_[output]);
    ++position_;
  }

  const StepMemory& step_;
  Table<ValueId, Life> lives_;     // of bases
  Table<ValueId, ValueId> later_;  // the base that is read after the forward pass
  int32_t position_ = 0;
};

StepMemory::Need StepMemory::need(const Table<NodeId, bool>& chosen, int64_t limit) const {
  Need need;
  int64_t live = 0;
  for (const int64_t change : Walk(*this, chosen).changes()) {
    live += change;
    need.peak = std::max(need.peak, live);
    need.excess += double(std::max<int64_t>(0, live - limit));
  }
  return need;
}

}  // namespace arbalest
