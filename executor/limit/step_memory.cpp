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
      read_later_(graph_.values.size(), false) {
  const std::vector<View> shared = shared_storage(graph_);
  for (size_t v = 0; v < storage_.size(); ++v) {
    const ValueId base = shared[v].base;
    if (graph_.values[size_t(base)].role == Role::Activation) storage_[v] = base;
    bytes_[v] = aligned(graph_.values[v].type.bytes());
  }
  for (size_t n = 0; n < graph_.nodes.size(); ++n) {
    const Node& node = graph_.nodes[n];
    nodes_.push_back(packed(*node.op, node.inputs, node.outputs));
    const Repetition& again = repetitions_.of(NodeId(n));
    again_.push_back(again.op ? packed(*again.op, again.inputs, again.outputs) : Operands{});
    aside_.push_back(branch && can_run_aside(graph_, node));
    if (node.stage == Stage::Forward) continue;
    for (const ValueId input : nodes_[n].inputs) read_later_[size_t(storage_[size_t(input)])] = true;
  }
  for (const UpdatePart& part : updates) {
    if (part.padded) continue;
    Gradients& gradients = gradients_.emplace_back(Gradients{part.after, part.after, part.bytes()});
    for (const Value& value : graph_.values) {
      if (value.view.base != loop.arenas.gradients || !part.holds(value.view.offset_bytes)) continue;
      gradients.first = std::min(gradients.first, value.producer);
    }
  }
  for (const ValueId output : graph_.outputs) {
    if (storage_[size_t(output)] != kNone) read_later_[size_t(storage_[size_t(output)])] = true;
  }
}

StepMemory::Operands StepMemory::packed(const Op& op, const std::vector<ValueId>& inputs,
                                        const std::vector<ValueId>& outputs) const {
  Operands operands;
  const auto is_packed = [&](ValueId value) { return value != kNone && storage_[size_t(value)] != kNone; };
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
    const bool over = is_packed(to) && is_packed(from) && storage_[size_t(to)] == storage_[size_t(from)];
    if (over) operands.views.emplace_back(to, from);
  }
  return operands;
}

// The nodes of a step in their order, with those that are computed again among them. Bases of values that are made
// again have numbers after those of all values.
class StepMemory::Walk {
 public:
  Walk(const StepMemory& step, const std::vector<bool>& chosen)
      : step_(step), lives_(2 * step.storage_.size() + step.gradients_.size()), later_(step.storage_) {
    const std::vector<NodeId> places = step.repetitions_.places(chosen);
    std::vector<std::pair<NodeId, NodeId>> again;  // (what it precedes, the node)
    for (size_t n = 0; n < places.size(); ++n) {
      if (places[n] != kNone) again.emplace_back(places[n], NodeId(n));
    }
    std::sort(again.begin(), again.end());
    auto next = again.begin();
    for (size_t n = 0; n < places.size(); ++n) {
      for (; next != again.end() && next->first == NodeId(n); ++next) repeat(size_t(next->second));
      run(n);
    }
    for (const ValueId output : step.graph_.outputs) touch(step.storage_[size_t(output)]);
  }

  // By position: bytes that live there, less those at the position before.
  std::vector<int64_t> changes() const {
    std::vector<int64_t> changes(size_t(position_) + 2, 0);
    for (size_t base = 0; base < lives_.size(); ++base) {
      const Life& life = lives_[base];
      if (life.first < 0) continue;
      const int64_t bytes = bytes_of(ValueId(base));
      changes[size_t(life.first)] += bytes;
      changes[size_t(std::min(life.last, position_)) + 1] -= bytes;
    }
    return changes;
  }

 private:
  int64_t bytes_of(ValueId base) const {
    const size_t values = step_.bytes_.size();
    return size_t(base) < 2 * values ? step_.bytes_[size_t(base) % values]
                                     : aligned(step_.gradients_[size_t(base) - 2 * values].bytes);
  }
  void touch(ValueId base, int32_t linger = 0) {
    if (base == kNone) return;
    Life& life = lives_[size_t(base)];
    if (life.first < 0) life.first = position_;
    life.last = std::max(life.last, position_ + linger);
  }

  void run(size_t node) {
    const Operands& operands = step_.nodes_[node];
    const bool forward = step_.graph_.nodes[node].stage == Stage::Forward;
    const std::vector<ValueId>& where = forward ? step_.storage_ : later_;
    for (const auto& [output, input] : operands.views) {
      if (!forward) later_[size_t(output)] = later_[size_t(input)];
    }
    for (const ValueId input : operands.inputs) {
      const ValueId base = where[size_t(input)];
      touch(base, step_.aside_[node] ? linger_of(bytes_of(base)) : 0);
    }
    for (const ValueId output : operands.outputs) touch(where[size_t(output)]);
    for (size_t i = 0; i < step_.gradients_.size(); ++i) {
      const auto base = ValueId(2 * step_.storage_.size() + i);
      if (step_.gradients_[i].first == NodeId(node)) touch(base);
      if (step_.gradients_[i].last == NodeId(node))
        touch(base, step_.branch_ ? linger_of(step_.gradients_[i].bytes) : 0);
    }
    ++position_;
  }

  void repeat(size_t node) {
    const Operands& operands = step_.again_[node];
    for (const ValueId input : operands.inputs) touch(later_[size_t(input)]);
    for (const ValueId output : operands.outputs) later_[size_t(output)] = ValueId(step_.storage_.size()) + output;
    for (const auto& [output, input] : operands.views) later_[size_t(output)] = later_[size_t(input)];
    for (const ValueId output : operands.outputs) touch(later_[size_t(output)]);
    ++position_;
  }

  const StepMemory& step_;
  std::vector<Life> lives_;     // by base
  std::vector<ValueId> later_;  // by value: the base that is read after the forward pass
  int32_t position_ = 0;
};

StepMemory::Need StepMemory::need(const std::vector<bool>& chosen, int64_t limit) const {
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
