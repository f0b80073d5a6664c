// SPDX-License-Identifier: Apache-2.0
#include "executor/plan/memory_placement.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "executor/plan/phases.h"
#include "graph/op.h"

namespace arbalest {
namespace {

// Throws GraphError if a node reads a value by its old name after the value has been updated in place.
void check_carries(const Graph& graph) {
  for (const Carry& carry : graph.carries) {
    const NodeId writer = graph.values[carry.next].producer;
    for (NodeId n = writer + 1; n < graph.nodes.end_id(); ++n) {
      const auto& inputs = graph.nodes[n].inputs;
      if (std::find(inputs.begin(), inputs.end(), carry.current) != inputs.end()) {
        fail(graph.nodes[n], fmt::format("reads '{}' after it was updated in place", graph.values[carry.current].name));
      }
    }
  }
}

}  // namespace

MemoryPlacement::MemoryPlacement(Plan& plan, const Loop& loop, std::string prefix, bool branch,
                                 const std::vector<UpdatePart>& updates)
    : plan_(plan),
      loop_(loop),
      graph_(loop.graph),
      prefix_(std::move(prefix)),
      branch_(branch),
      updates_(updates),
      gradients_(updates.empty() ? kNone : loop.arenas.gradients),
      storage_(shared_storage(graph_)),
      home_(graph_.values.size()),
      first_(graph_.values.size(), -1),
      last_(graph_.values.size(), -1) {
  check_carries(graph_);
}

void MemoryPlacement::put(const GivenMemory& given) {
  for (const auto& [value, operand] : given) home_[value] = operand;
}

void MemoryPlacement::put_batch(BufferId slots, const BatchLayout& layout) {
  for (size_t field = 0; field < loop_.fields.size() && layout.origin != BatchOrigin::Resident; ++field) {
    const ValueId input = loop_.fields[field];
    if (input != kNone) home_[input] = {slots, layout.offsets[field], 0};
  }
}

ArenaId MemoryPlacement::add_arena(const char* what, int32_t device) {
  return plan_.arenas.push_back({fmt::format("{}/{}", prefix_, what), device, Arena::Memory::Device, 0});
}

void MemoryPlacement::find_lifetimes() {
  const auto touch = [&](ValueId value, NodeId node) {
    if (value == kNone) return;
    const ValueId base = storage_[value].base;
    if (first_[base] < 0) first_[base] = int32_t(node);
    last_[base] = int32_t(node);
  };
  for (const NodeId n : graph_.nodes.ids()) {
    for (const ValueId input : graph_.nodes[n].inputs) touch(input, n);
    for (const ValueId output : graph_.nodes[n].outputs) touch(output, n);
  }
  const Table<NodeId, bool> aside = branch_ ? nodes_aside(graph_) : Table<NodeId, bool>(graph_.nodes.size());
  for (const NodeId n : graph_.nodes.ids()) {
    if (!aside[n]) continue;
    for (const ValueId input : graph_.nodes[n].inputs) {
      if (input == kNone) continue;
      const ValueId base = storage_[input].base;
      const int32_t linger = linger_of(graph_.values[base].type.bytes());
      last_[base] = std::max(last_[base], std::min(int32_t(n) + linger, int32_t(graph_.nodes.size())));
    }
  }
  for (const ValueId output : graph_.outputs) touch(output, graph_.nodes.end_id());  // read when the step is over
}

// The part of the updates that has the gradient.
size_t MemoryPlacement::part_of(ValueId value) const {
  const auto part = std::find_if(updates_.begin(), updates_.end() - 1,
                                 [&](const UpdatePart& each) { return each.holds(storage_[value].offset_bytes); });
  return size_t(part - updates_.begin());  // what has no elements may lie after all of them
}

// Gradients that are updated in parts die with their part's update.
void MemoryPlacement::find_gradients() {
  for (const UpdatePart& part : updates_) {
    const int32_t linger = branch_ ? linger_of(part.bytes()) : 0;
    const int32_t end = std::min(int32_t(part.after) + linger, int32_t(graph_.nodes.size()));
    lifetimes_.push_back({part.bytes(), end, end});
  }
  if (gradients_ == kNone) return;
  for (const NodeId n : graph_.nodes.ids()) {
    for (const ValueId output : graph_.nodes[n].outputs) {
      if (output == kNone || storage_[output].base != gradients_) continue;
      int32_t& begin = lifetimes_[part_of(output)].first;
      begin = std::min(begin, int32_t(n));
    }
  }
}

// Places what outlives an iteration, and returns the values that are packed.
std::vector<ValueId> MemoryPlacement::place_state(ArenaId state) {
  std::vector<ValueId> transient;
  for (const ValueId v : graph_.values.ids()) {
    const Value& value = graph_.values[v];
    if (home_[v].buffer != kNone || v == gradients_ || storage_[v].base != v) continue;
    if (value.role != Role::Activation) {
      const std::string name = fmt::format("{}/{}", prefix_, value.name);
      home_[v] = {add_buffer(plan_, state, name, value.type.bytes(), 1, kNone), 0, 0};
    } else if (first_[v] >= 0) {
      lifetimes_.push_back({value.type.bytes(), first_[v], last_[v]});
      transient.push_back(v);
    }
  }
  return transient;
}

Operand MemoryPlacement::add_packed(const std::string& name, size_t index, ArenaId activations,
                                    const Packing& packing) {
  const Lifetime& life = lifetimes_[index];
  const BufferId buffer = plan_.buffers.push_back({prefix_ + "/" + name, activations, packing.offsets[index],
                                                   life.bytes, aligned(life.bytes), 1, kNone, life.first, life.last});
  return {buffer, 0, 0};
}

Placement MemoryPlacement::place(int32_t device) {
  const ArenaId state = add_arena("state", device);
  find_lifetimes();
  find_gradients();
  const std::vector<ValueId> transient = place_state(state);
  const Packing packing = pack(lifetimes_);
  Placement placement;
  placement.activations = add_arena("activations", device);
  plan_.arenas[placement.activations].bytes = packing.bytes;
  std::vector<Operand> parts;  // of gradients
  for (size_t i = 0; i < updates_.size(); ++i) {
    const UpdatePart& part = updates_[i];
    const std::string name = fmt::format("{} {}", graph_.values[gradients_].name, i);
    parts.push_back(add_packed(name, i, placement.activations, packing));
    parts.back().offset = -part.offset * int64_t(sizeof(float));
  }
  for (size_t i = 0; i < transient.size(); ++i) {
    const std::string& name = graph_.values[transient[i]].name;
    home_[transient[i]] = add_packed(name, updates_.size() + i, placement.activations, packing);
  }
  placement.of.resize(graph_.values.size());
  for (const ValueId v : graph_.values.ids()) {
    const bool in_part = storage_[v].base == gradients_ && v != gradients_ && gradients_ != kNone;
    placement.of[v] = in_part ? parts[part_of(v)] : home_[storage_[v].base];
    placement.of[v].offset += storage_[v].offset_bytes;
  }
  return placement;
}

}  // namespace arbalest
