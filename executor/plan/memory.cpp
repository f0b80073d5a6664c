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
// launch aside may read late, so the values that one reads are not overwritten.
void overwrite_dead(const Graph& graph, std::vector<View>& storage) {
  struct Use {
    NodeId last = kNone;
    bool aside = false;
  };
  std::vector<Use> uses(graph.values.size());  // by base
  const auto base_of = [&](ValueId value) { return storage[size_t(value)].base; };
  const auto is_own = [&](ValueId value) {
    return value != kNone && base_of(value) == value && graph.values[size_t(value)].role == Role::Activation;
  };
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const bool aside = can_run_aside(graph, graph.nodes[n]);
    for (const ValueId input : graph.nodes[n].inputs) {
      if (input == kNone) continue;
      Use& use = uses[size_t(base_of(input))];
      use = {NodeId(n), use.aside || aside};
    }
  }
  for (const ValueId output : graph.outputs) uses[size_t(base_of(output))].last = NodeId(graph.nodes.size());

  std::vector<ValueId> moved(graph.values.size(), kNone);  // by base: the base whose memory it takes
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    for (const auto& [output, input] : node.op->overwrites) {
      if (size_t(output) >= node.outputs.size() || size_t(input) >= node.inputs.size()) continue;
      const ValueId to = node.outputs[size_t(output)], from = node.inputs[size_t(input)];
      if (!is_own(to) || !is_own(from) || graph.values[size_t(to)].type != graph.values[size_t(from)].type) continue;
      const auto memory_of = [&](ValueId value) {
        const ValueId base = base_of(value);
        return moved[size_t(base)] == kNone ? base : moved[size_t(base)];
      };
      const ValueId base = memory_of(from);
      Use& use = uses[size_t(base)];
      const auto readers = std::count_if(node.inputs.begin(), node.inputs.end(),
                                         [&](ValueId value) { return value != kNone && memory_of(value) == base; });
      if (use.last != NodeId(n) || use.aside || readers > 1) continue;
      moved[size_t(to)] = base;
      use = uses[size_t(to)];
    }
  }
  for (View& view : storage) {
    if (moved[size_t(view.base)] != kNone) view.base = moved[size_t(view.base)];
  }
}

}  // namespace

std::vector<View> shared_storage(const Graph& graph) {
  std::vector<View> storage(graph.values.size());
  for (size_t v = 0; v < storage.size(); ++v) storage[v] = storage_of(graph, ValueId(v));
  for (const Node& node : graph.nodes) {
    for (const auto& [output, input] : node.op->aliases) {
      if (size_t(output) >= node.outputs.size() || size_t(input) >= node.inputs.size()) continue;
      const ValueId out = node.outputs[size_t(output)], in = node.inputs[size_t(input)];
      const bool own = out != kNone && in != kNone && graph.values[size_t(out)].view.base == kNone;
      if (own) storage[size_t(out)] = storage[size_t(in)];
    }
  }
  for (const Carry& carry : graph.carries) storage[size_t(carry.next)] = storage[size_t(carry.current)];
  overwrite_dead(graph, storage);
  return storage;
}

namespace {

// Throws GraphError if a node reads a value by its old name after the value has been updated in place.
void check_carries(const Graph& graph) {
  for (const Carry& carry : graph.carries) {
    const NodeId writer = graph.values[size_t(carry.next)].producer;
    for (size_t n = size_t(writer) + 1; n < graph.nodes.size(); ++n) {
      const auto& inputs = graph.nodes[n].inputs;
      if (std::find(inputs.begin(), inputs.end(), carry.current) != inputs.end()) {
        fail(graph.nodes[n],
             fmt::format("reads '{}' after it was updated in place", graph.values[size_t(carry.current)].name));
      }
    }
  }
}

}  // namespace

bool can_run_aside(const Graph& graph, const Node& node) {
  // Reading more bytes than this from memory takes longer than a launch. Kernels that fill a GPU gain nothing from
  // running in parallel with others.
  constexpr int64_t kMostBytes = 24 << 20;
  if (node.stage != Stage::Backward) return false;
  int64_t bytes = 0;
  for (const ValueId input : node.inputs) bytes += input == kNone ? 0 : graph.values[size_t(input)].type.bytes();
  // Among newly computed values, only parameter gradients are views (into the gradients' arena); the others have
  // storage of their own.
  const auto of_parameter = [&](ValueId v) {
    return v == kNone ||
           (graph.values[size_t(v)].role == Role::Activation && graph.values[size_t(v)].view.base != kNone);
  };
  return bytes <= kMostBytes && !node.outputs.empty() &&
         std::all_of(node.outputs.begin(), node.outputs.end(), of_parameter);
}

BufferId add_buffer(Plan& plan, ArenaId arena, std::string name, int64_t bytes, int32_t slots, ClockId clock) {
  Arena& home = plan.arenas[size_t(arena)];
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
  plan.buffers.push_back(std::move(buffer));
  return BufferId(plan.buffers.size() - 1);
}

BatchLayout batch_layout(const Loop& loop, BatchOrigin origin) {
  BatchLayout layout;
  layout.origin = origin;
  layout.offsets.assign(loop.fields.size(), 0);
  layout.bytes = sizeof(StepScalars);
  for (size_t field = 0; field < loop.fields.size() && origin != BatchOrigin::Resident; ++field) {
    if (loop.fields[field] == kNone) continue;
    layout.offsets[field] = aligned(layout.bytes);
    layout.bytes =
        memory_sum(layout.offsets[field], loop.graph.values[size_t(loop.fields[field])].type.bytes(), "a batch");
  }
  layout.pinned_bytes = layout.bytes;
  if (origin == BatchOrigin::Samples) layout.pinned_bytes = sizeof(StepScalars) + loop.batch * sizeof(int64_t);
  return layout;
}

Placement place(Plan& plan, const Loop& loop, const std::string& prefix, int32_t device, BufferId batch,
                const BatchLayout& layout, const std::vector<std::pair<ValueId, Operand>>& given, bool branch,
                const std::vector<UpdatePart>& updates) {
  const Graph& graph = loop.graph;
  check_carries(graph);
  const std::vector<View> storage = shared_storage(graph);
  std::vector<Operand> home(graph.values.size());  // of bases
  for (const auto& [value, operand] : given) home[size_t(value)] = operand;
  const auto new_arena = [&](std::string_view what) {
    plan.arenas.push_back({fmt::format("{}/{}", prefix, what), device, Arena::Memory::Device, 0});
    return ArenaId(plan.arenas.size() - 1);
  };

  const ArenaId state = new_arena("state");
  std::vector<int32_t> first(graph.values.size(), -1), last(graph.values.size(), -1);
  const auto touch = [&](ValueId value, size_t node) {
    if (value == kNone) return;
    const auto base = size_t(storage[size_t(value)].base);
    if (first[base] < 0) first[base] = int32_t(node);
    last[base] = int32_t(node);
  };
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (const ValueId input : graph.nodes[n].inputs) touch(input, n);
    for (const ValueId output : graph.nodes[n].outputs) touch(output, n);
  }
  for (size_t n = 0; n < graph.nodes.size() && branch; ++n) {
    if (!can_run_aside(graph, graph.nodes[n])) continue;
    for (const ValueId input : graph.nodes[n].inputs) {
      if (input == kNone) continue;
      const auto base = size_t(storage[size_t(input)].base);
      const int32_t linger = linger_of(graph.values[base].type.bytes());
      last[base] = std::max(last[base], std::min(int32_t(n) + linger, int32_t(graph.nodes.size())));
    }
  }

  for (const ValueId output : graph.outputs) touch(output, graph.nodes.size());  // read when the step is over

  // Gradients that are updated in parts die with their part's update.
  std::vector<Lifetime> lifetimes;
  const ValueId gradients = updates.empty() ? kNone : loop.arenas.gradients;
  const auto part_of = [&](ValueId value) {
    const auto part = std::find_if(updates.begin(), updates.end() - 1, [&](const UpdatePart& each) {
      return each.holds(storage[size_t(value)].offset_bytes);
    });
    return size_t(part - updates.begin());  // what has no elements may lie after all of them
  };
  for (const UpdatePart& part : updates) {
    const int32_t linger = branch ? linger_of(part.bytes()) : 0;
    const int32_t end = std::min(part.after + linger, int32_t(graph.nodes.size()));
    lifetimes.push_back({part.padded ? 0 : part.bytes(), end, end});
  }
  for (size_t n = 0; n < graph.nodes.size() && gradients != kNone; ++n) {
    for (const ValueId output : graph.nodes[n].outputs) {
      if (output == kNone || storage[size_t(output)].base != gradients) continue;
      int32_t& begin = lifetimes[part_of(output)].first;
      begin = std::min(begin, int32_t(n));
    }
  }

  for (size_t field = 0; field < loop.fields.size() && layout.origin != BatchOrigin::Resident; ++field) {
    const ValueId input = loop.fields[field];
    if (input != kNone) home[size_t(input)] = {batch, layout.offsets[field], 0};
  }

  std::vector<size_t> transient;
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    const bool base = storage[v].base == ValueId(v);
    if (home[v].buffer != kNone || ValueId(v) == gradients) continue;
    if (base && value.role == Role::Activation) {
      if (first[v] < 0) continue;
      lifetimes.push_back({value.type.bytes(), first[v], last[v]});
      transient.push_back(v);
    } else if (base) {
      home[v] = {add_buffer(plan, state, fmt::format("{}/{}", prefix, value.name), value.type.bytes(), 1, kNone), 0, 0};
    }
  }

  const Packing packing = pack(lifetimes);
  const ArenaId activations = new_arena("activations");
  plan.arenas[size_t(activations)].bytes = packing.bytes;
  const auto add_packed = [&](const std::string& name, size_t i) {
    const int64_t bytes = lifetimes[i].bytes;
    plan.buffers.push_back({prefix + "/" + name, activations, packing.offsets[i], bytes, aligned(bytes), 1, kNone,
                            lifetimes[i].first, lifetimes[i].last});
    return Operand{BufferId(plan.buffers.size() - 1), 0, 0};
  };
  std::vector<Operand> gradient_parts;
  for (size_t i = 0; i < updates.size(); ++i) {
    const std::string name = fmt::format("{} {}", graph.values[size_t(gradients)].name, i);
    gradient_parts.push_back(updates[i].padded
                                 ? Operand{add_buffer(plan, state, prefix + "/" + name, updates[i].bytes(), 1, kNone)}
                                 : add_packed(name, i));
    gradient_parts.back().offset = -updates[i].offset * int64_t(sizeof(float));
  }
  for (size_t i = 0; i < transient.size(); ++i) {
    home[transient[i]] = add_packed(graph.values[transient[i]].name, updates.size() + i);
  }

  Placement placement;
  placement.activations = activations;
  placement.of.resize(graph.values.size());
  for (size_t v = 0; v < graph.values.size(); ++v) {
    const bool in_part = storage[v].base == gradients && ValueId(v) != gradients && gradients != kNone;
    placement.of[v] = in_part ? gradient_parts[part_of(ValueId(v))] : home[size_t(storage[v].base)];
    placement.of[v].offset += storage[v].offset_bytes;
  }
  return placement;
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
