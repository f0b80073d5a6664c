// SPDX-License-Identifier: Apache-2.0
#pragma once
// A loop's graph, as the passes leave it, run node by node on a device of the operators' harness.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "graph/op.h"
#include "io/formats/layout.h"
#include "ops/check/harness.h"
#include "passes/program.h"

namespace arbalest::test {

class LoopRun {
 public:
  // Floats of the graph are computed as `floats`, Float32 or Float64. Every value that is no view has memory of its
  // own, zeros at first.
  LoopRun(const Loop& loop, TestDevice& device, DataType floats) : graph_(loop.graph), device_(device) {
    const auto factor = int64_t(size_of(floats) / sizeof(float));
    for (Value& value : graph_.values) {
      if (value.type.dtype != DataType::Float32) continue;
      value.type.dtype = floats;
      value.view.offset_bytes *= factor;
    }
    for (const ValueId v : graph_.values.ids()) {
      const Value& value = graph_.values[v];
      memory_.push_back(value.view.base == kNone ? allocate(value.type.bytes()) : nullptr);
    }
    for (const Node& node : graph_.nodes) {
      KernelRequest request{.node = node, .inputs = {}, .outputs = {}, .deterministic = true};
      request.device = device.context();
      for (const ValueId v : node.inputs) request.inputs.push_back(type(v));
      for (const ValueId v : node.outputs) request.outputs.push_back(type(v));
      kernels_.push_back(device.factory(*node.op)(request));
      workspaces_.push_back(allocate(kernels_.back()->workspace_bytes()));
    }
    for (const ValueId v : graph_.values.ids()) set_initial(v);
  }

  const Graph& graph() const { return graph_; }
  TensorType type(ValueId v) const { return v == kNone ? TensorType{DataType::Token, {}} : graph_.values[v].type; }

  std::byte* memory(ValueId v) {
    const View storage = storage_of(graph_, v);
    return static_cast<std::byte*>(memory_[storage.base].get()) + storage.offset_bytes;
  }

  // Elements in row-major order.
  void set(ValueId v, const std::vector<double>& elements) {
    const Tensor tensor = make_tensor(type(v), elements);
    std::vector<std::byte> bytes(tensor.bytes.size());
    to_memory_order(tensor.type, tensor.bytes.data(), bytes.data());
    device_.upload(memory(v), bytes.data(), bytes.size());
  }
  std::vector<double> get(ValueId v) {
    Tensor tensor{type(v), std::vector<std::byte>(size_t(type(v).bytes()))};
    std::vector<std::byte> bytes(tensor.bytes.size());
    device_.download(bytes.data(), memory(v), bytes.size());
    to_row_major(tensor.type, bytes.data(), tensor.bytes.data());
    return values_of(tensor);
  }

  void run(const StepScalars& scalars) {
    const Memory held = allocate(sizeof scalars);
    device_.upload(held.get(), &scalars, sizeof scalars);
    for (const NodeId n : graph_.nodes.ids()) {
      std::vector<const void*> inputs;
      std::vector<void*> outputs;
      for (const ValueId v : graph_.nodes[n].inputs) inputs.push_back(v == kNone ? nullptr : memory(v));
      for (const ValueId v : graph_.nodes[n].outputs) outputs.push_back(v == kNone ? nullptr : memory(v));
      device_.run(*kernels_[n], {device_.stream(), inputs.data(), outputs.data(), workspaces_[n].get(),
                                 static_cast<const StepScalars*>(held.get())});
    }
  }

  // run(), after which stored values are what the next iteration reads.
  void step(const StepScalars& scalars) {
    run(scalars);
    for (const Carry& carry : graph_.carries) {
      std::vector<std::byte> bytes(size_t(type(carry.current).bytes()));
      device_.download(bytes.data(), memory(carry.next), bytes.size());
      device_.upload(memory(carry.current), bytes.data(), bytes.size());
    }
  }

 private:
  using Memory = std::shared_ptr<void>;

  Memory allocate(int64_t bytes) {
    static const std::vector<std::byte> zeros(size_t{1} << 20);  // written again and again: fresh pages take longer
    const size_t size = size_t(std::max<int64_t>(bytes, 8));
    Memory memory(device_.allocate(size), [device = &device_](void* held) { device->release(held); });
    for (size_t at = 0; at < size; at += zeros.size()) {
      device_.upload(static_cast<std::byte*>(memory.get()) + at, zeros.data(), std::min(zeros.size(), size - at));
    }
    return memory;
  }

  // Numbers that are drawn come from elsewhere.
  void set_initial(ValueId v) {
    const Value& value = graph_.values[v];
    const Initializer& initial = value.initializer;
    if (value.role == Role::Activation || value.role == Role::Input) return;
    if (initial.kind == Initializer::Kind::Constant && initial.a != 0) {
      set(v, std::vector<double>(size_t(value.type.elements()), initial.a));
    }
    if (initial.kind != Initializer::Kind::Data) return;
    Tensor stated{value.type, *initial.data};
    if (value.type.dtype == DataType::Float64 && int64_t(initial.data->size()) < value.type.bytes()) {
      stated.type.dtype = DataType::Float32;
    }
    set(v, values_of(stated));
  }

  Graph graph_;
  TestDevice& device_;
  Table<ValueId, Memory> memory_;
  Table<NodeId, std::unique_ptr<Kernel>> kernels_;
  Table<NodeId, Memory> workspaces_;
};

}  // namespace arbalest::test
