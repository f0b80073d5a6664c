// SPDX-License-Identifier: Apache-2.0

// Assigns memory to every value: persistent arenas, slots, and transient memory, which packing.cpp packs.

#include <fmt/format.h>

#include <algorithm>

#include "base/checked.h"
#include "executor/plan/make_plan.h"
#include "executor/plan/phases.h"
#include "graph/op.h"

namespace arbalest {

namespace {

// Lets outputs take the memory of inputs that nothing reads afterwards, if their operators allow it (Op::overwrites). A
// launch aside may read late, so no other launch overwrites what it reads, except those aside, which run in order.
void overwrite_dead(const Graph& graph, Table<ValueId, View>& storage) {
  struct Use {
    NodeId last = kNone;
    bool aside = false;
  };
  Table<ValueId, Use> uses(graph.values.size());  // by base
  const auto base_of = [&](ValueId value) { return storage[value].base; };
  const auto is_own = [&](ValueId value) {
    return value != kNone && base_of(value) == value && graph.values[value].role == Role::Activation;
  };
  const Table<NodeId, bool> aside = nodes_aside(graph);
  for (const NodeId n : graph.nodes.ids()) {
    for (const ValueId input : graph.nodes[n].inputs) {
      if (input == kNone) continue;
      Use& use = uses[base_of(input)];
      use = {n, use.aside || aside[n]};
    }
  }
  for (const ValueId output : graph.outputs) uses[base_of(output)].last = graph.nodes.end_id();

  Table<ValueId, ValueId> moved(graph.values.size(), kNone);  // by base: the base whose memory it takes
  for (const NodeId n : graph.nodes.ids()) {
    const Node& node = graph.nodes[n];
    for (const auto& [output, input] : node.op->overwrites) {
      if (size_t(output) >= node.outputs.size() || size_t(input) >= node.inputs.size()) continue;
      const ValueId to = node.outputs[size_t(output)], from = node.inputs[size_t(input)];
      if (!is_own(to) || !is_own(from) || graph.values[to].type != graph.values[from].type) continue;
      const auto memory_of = [&](ValueId value) {
        const ValueId base = base_of(value);
        return moved[base] == kNone ? base : moved[base];
      };
      const ValueId base = memory_of(from);
      Use& use = uses[base];
      const auto readers = std::count_if(node.inputs.begin(), node.inputs.end(),
                                         [&](ValueId value) { return value != kNone && memory_of(value) == base; });
      if (use.last != n || (use.aside && !aside[n]) || readers > 1) continue;
      moved[to] = base;
      use = uses[to];
    }
  }
  for (View& view : storage) {
    if (moved[view.base] != kNone) view.base = moved[view.base];
  }
}

}  // namespace

Table<ValueId, View> shared_storage(const Graph& graph) {
  Table<ValueId, View> storage(graph.values.size());
  for (const ValueId v : storage.ids()) storage[v] = storage_of(graph, v);
  for (const Node& node : graph.nodes) {
    for (const auto& [output, input] : node.op->aliases) {
      if (size_t(output) >= node.outputs.size() || size_t(input) >= node.inputs.size()) continue;
      const ValueId out = node.outputs[size_t(output)], in = node.inputs[size_t(input)];
      const bool own = out != kNone && in != kNone && graph.values[out].view.base == kNone;
      if (own) storage[out] = storage[in];
    }
  }
  for (const Carry& carry : graph.carries) storage[carry.next] = storage[carry.current];
  overwrite_dead(graph, storage);
  return storage;
}

namespace {

// Finds what nodes_aside() returns.
class Aside {
 public:
  explicit Aside(const Graph& graph)
      : graph_(graph),
        of_weights_(made_of_weights(graph)),
        readers_(graph.consumers()),
        stays_(graph.values.size()),
        found_(graph.nodes.size()) {
    for (const ValueId output : graph.outputs) stays_[output] = true;
    for (const Carry& carry : graph.carries) stays_[carry.next] = true;
  }

  Table<NodeId, bool> find() {
    for (const NodeId n : graph_.nodes.ids()) found_[n] = is_candidate(graph_.nodes[n]);
    for (bool shrinks = true; shrinks;) {
      shrinks = false;
      const Table<NodeId, bool> tails = find_tails();
      for (const NodeId n : graph_.nodes.ids()) {
        if (!found_[n] || is_needed_by_tails_alone(graph_.nodes[n], tails)) continue;
        found_[n] = false;
        shrinks = true;
      }
    }
    return std::move(found_);
  }

 private:
  bool is_candidate(const Node& node) const {
    if (node.stage == Stage::Update || node.outputs.empty() || !is_small(node)) return false;
    return std::all_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) {
      if (v == kNone) return true;
      if (node.stage == Stage::Forward) return of_weights_[v] && is_transient(v);
      return is_gradient(v) || (is_transient(v) && !readers_[v].empty());
    });
  }
  bool is_needed_by_tails_alone(const Node& node, const Table<NodeId, bool>& tails) const {
    return node.stage == Stage::Forward || std::all_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) {
             return v == kNone || is_gradient(v) || are_all(readers_[v], tails);
           });
  }
  // Nodes aside that read nothing but weights and values that only nodes aside read. All of a backward pass leads to
  // gradients of parameters. A node that reads activations as well is no tail, so the pass itself stays where it is.
  Table<NodeId, bool> find_tails() const {
    Table<NodeId, bool> tails(graph_.nodes.size());
    for (const NodeId n : graph_.nodes.ids()) {
      const std::vector<ValueId>& inputs = graph_.nodes[n].inputs;
      tails[n] = found_[n] && std::all_of(inputs.begin(), inputs.end(), [&](ValueId v) {
                   return v == kNone || of_weights_[v] || (is_of_backward(v) && are_all(readers_[v], found_));
                 });
    }
    return tails;
  }

  // Reading more bytes than this from memory takes longer than a launch. Kernels that fill a GPU gain nothing from
  // running in parallel with others.
  bool is_small(const Node& node) const {
    constexpr int64_t kMostBytes = 24 << 20;
    int64_t bytes = 0;
    const auto add = [&](ValueId v) { bytes += v == kNone ? 0 : graph_.values[v].type.bytes(); };
    std::for_each(node.inputs.begin(), node.inputs.end(), add);
    if (node.stage == Stage::Forward) std::for_each(node.outputs.begin(), node.outputs.end(), add);
    return bytes <= kMostBytes;
  }
  // Among newly computed values, only gradients of parameters are views (into the gradients' arena); the others have
  // storage of their own.
  bool is_gradient(ValueId v) const {
    return graph_.values[v].role == Role::Activation && graph_.values[v].view.base != kNone;
  }
  bool is_transient(ValueId v) const {
    return graph_.values[v].role == Role::Activation && graph_.values[v].view.base == kNone && !stays_[v];
  }
  bool is_of_backward(ValueId v) const {
    const NodeId producer = graph_.values[v].producer;
    return producer != kNone && graph_.nodes[producer].stage == Stage::Backward;
  }
  static bool are_all(const std::vector<NodeId>& nodes, const Table<NodeId, bool>& marks) {
    return std::all_of(nodes.begin(), nodes.end(), [&](NodeId n) { return marks[n]; });
  }

  const Graph& graph_;
  const Table<ValueId, bool> of_weights_;
  const Table<ValueId, std::vector<NodeId>> readers_;
  Table<ValueId, bool> stays_;  // when the step is over
  Table<NodeId, bool> found_;
};

}  // namespace

Table<NodeId, bool> nodes_aside(const Graph& graph) {
  return Aside(graph).find();
}

BufferId add_buffer(Plan& plan, ArenaId arena, std::string name, int64_t bytes, int32_t slots, ClockId clock) {
  Arena& home = plan.arenas[arena];
  Buffer buffer;
  buffer.name = std::move(name);
  buffer.arena = arena;
  buffer.offset = aligned(home.bytes);
  buffer.bytes = bytes;
  buffer.stride = aligned(bytes);
  buffer.slots = slots;
  buffer.clock = slots > 1 ? clock : kNone;
  const char* what = buffer.name.c_str();
  home.bytes = memory_sum(buffer.offset, memory_of(buffer.stride, slots, what), what);
  return plan.buffers.push_back(std::move(buffer));
}

BatchLayout batch_layout(const Loop& loop, BatchOrigin origin) {
  BatchLayout layout;
  layout.origin = origin;
  layout.offsets.assign(loop.fields.size(), 0);
  layout.bytes = sizeof(StepScalars);
  for (size_t field = 0; field < loop.fields.size() && origin != BatchOrigin::Resident; ++field) {
    if (loop.fields[field] == kNone) continue;
    layout.offsets[field] = aligned(layout.bytes);
    layout.bytes = memory_sum(layout.offsets[field], loop.graph.values[loop.fields[field]].type.bytes(), "a batch");
  }
  layout.pinned_bytes = layout.bytes;
  if (origin == BatchOrigin::Samples) layout.pinned_bytes = sizeof(StepScalars) + loop.batch * sizeof(int64_t);
  return layout;
}

int64_t planned_bytes(const Plan& plan, int32_t device) {
  int64_t bytes = 0;
  for (const Arena& arena : plan.arenas) {
    const bool pinned_elsewhere =
        arena.memory == Arena::Memory::Pinned && plan.devices[size_t(device)].kind == PlanDevice::Kind::Cuda;
    if (arena.device == device && !pinned_elsewhere) bytes = memory_sum(bytes, arena.bytes, "a device's memory");
  }
  return bytes;
}

}  // namespace arbalest
