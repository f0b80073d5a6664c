// SPDX-License-Identifier: Apache-2.0
#include "ops/fused/decomposed.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "graph/constants.h"
#include "graph/layouts.h"
#include "ops/builtin_ops.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

class DecomposedKernel final : public Kernel {
 public:
  explicit DecomposedKernel(const KernelRequest& request) {
    graph_.registry = &builtin_ops();
    decompose(request);
    place(request.deterministic);
  }

  int64_t workspace_bytes() const override { return bytes_; }

  void run(const KernelContext& context) const override {
    Table<ValueId, void*> memory(graph_.values.size());
    for (const ValueId v : memory.ids()) memory[v] = static_cast<std::byte*>(context.workspace) + offset_[v];
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (inputs_[i] != kNone) memory[inputs_[i]] = const_cast<void*>(context.inputs[i]);
    }
    for (const auto& [value, content] : constants_) {
      std::memcpy(memory[value], content->data(), content->size());
    }
    const auto of = [&](ValueId value) { return value == kNone ? nullptr : memory[value]; };
    for (const NodeId n : kernels_.ids()) {
      std::vector<const void*> in;
      std::vector<void*> out;
      for (const ValueId value : graph_.nodes[n].inputs) in.push_back(of(value));
      for (const ValueId value : graph_.nodes[n].outputs) out.push_back(of(value));
      kernels_[n]->run({nullptr, in.data(), out.data(), of(scratch_), context.scalars});
    }
    // Outputs may lie where inputs do, so they are written when no node reads those any more.
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (outputs_[i] != kNone) std::memcpy(context.outputs[i], of(outputs_[i]), size_t(type(outputs_[i]).bytes()));
    }
  }

 private:
  const TensorType& type(ValueId value) const { return graph_.values[value].type; }
  TensorType operand_type(ValueId value) const {
    return value == kNone ? TensorType{DataType::Token, {}} : type(value);
  }

  ValueId converted(ValueId value, DataType to, const Node& node) {
    if (type(value).dtype == to || !is_floating(to)) return value;
    ExpandContext context(graph_, node, replaced_);
    return add_one(context, "Cast", {value}, {{"to", int64_t{onnx_number(to)}}});
  }

  void decompose(const KernelRequest& request) {
    Node node = request.node;
    node.stage = Stage::Backward;  // nodes get their inputs in the layouts that they take
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      inputs_.push_back(request.has_input(i) ? graph_.add_value("input", request.inputs[i], Role::Input) : kNone);
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      node.outputs[i] = request.has_output(i) ? graph_.add_value("output", request.outputs[i]) : kNone;
    }
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const bool floats = inputs_[i] != kNone && is_floating(type(inputs_[i]).dtype);
      node.inputs[i] = floats ? converted(inputs_[i], master_type(type(inputs_[i]).dtype), node) : inputs_[i];
    }
    replaced_.assign(graph_.values.size(), kNone);
    ExpandContext context(graph_, node, replaced_);
    node.op->decompose(context);
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] == kNone) {
        outputs_.push_back(kNone);
        continue;
      }
      ValueId made = replaced_[node.outputs[i]];
      made = converted(in_layout(graph_, made, request.outputs[i].layout, node), request.outputs[i].dtype, node);
      if (!(type(made) == request.outputs[i])) {
        throw std::logic_error(node.op->qualified_name() + ": its decomposition makes " + to_string(type(made)) +
                               " instead of " + to_string(request.outputs[i]));
      }
      outputs_.push_back(made);
    }
  }

  // Makes the kernels, and gives each value memory of its own in the workspace.
  void place(bool deterministic) {
    int64_t scratch = 0;
    for (const Node& node : graph_.nodes) {
      KernelRequest request{.node = node, .inputs = {}, .outputs = {}, .deterministic = deterministic};
      for (const ValueId value : node.inputs) request.inputs.push_back(operand_type(value));
      for (const ValueId value : node.outputs) request.outputs.push_back(operand_type(value));
      kernels_.push_back(node.op->cpu(request));
      scratch = std::max(scratch, kernels_.back()->workspace_bytes());
    }
    scratch_ = graph_.add_value("scratch", {DataType::Uint8, {scratch}});
    for (const ValueId v : graph_.values.ids()) {
      constexpr int64_t kAligned = 256;
      offset_.push_back(bytes_);
      bytes_ += (graph_.values[v].type.bytes() + kAligned - 1) / kAligned * kAligned;
      if (graph_.values[v].role == Role::Constant) constants_.emplace_back(v, content_of(graph_, v));
    }
  }

  Graph graph_;
  std::vector<ValueId> inputs_, outputs_;
  Table<ValueId, ValueId> replaced_;
  Table<NodeId, std::unique_ptr<Kernel>> kernels_;
  std::vector<std::pair<ValueId, std::shared_ptr<const std::vector<std::byte>>>> constants_;
  Table<ValueId, int64_t> offset_;
  ValueId scratch_ = kNone;  // of one kernel at a time
  int64_t bytes_ = 0;
};

}  // namespace

std::unique_ptr<Kernel> decomposed_cpu(const KernelRequest& request) {
  return std::make_unique<DecomposedKernel>(request);
}

}  // namespace arbalest
