// SPDX-License-Identifier: Apache-2.0
#include "graph/verify/host_node.h"

#include <cstring>

#include "graph/constants.h"

namespace arbalest {
namespace {

// Memory that is aligned as kernels may expect.
class AlignedMemory {
 public:
  void* allocate(int64_t bytes) {
    blocks_.push_back(std::make_unique_for_overwrite<Block[]>(size_t(bytes) / sizeof(Block) + 1));
    return blocks_.back().get();
  }

 private:
  struct alignas(256) Block {
    std::byte bytes[256];
  };
  std::vector<std::unique_ptr<Block[]>> blocks_;
};

}  // namespace

HostNode::HostNode(const Graph& graph, const Node& node) : graph_(graph), node_(node) {
  take_operands(graph, node_);
  const auto type_of = [&](ValueId v) { return v == kNone ? TensorType{DataType::Token, {}} : graph.values[v].type; };
  KernelRequest request{.node = node_, .inputs = {}, .outputs = {}};
  for (const ValueId input : node_.inputs) request.inputs.push_back(type_of(input));
  for (const ValueId output : node_.outputs) outputs_.push_back(type_of(output));
  request.outputs = outputs_;
  request.deterministic = true;
  if (!node_.op->cpu) return;
  try {
    kernel_ = node_.op->cpu(request);
  } catch (const RunError&) {
  }
}

std::vector<std::shared_ptr<HostNode::Bytes>> HostNode::run(
    const std::function<std::shared_ptr<const Bytes>(ValueId)>& content) const {
  AlignedMemory memory;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  for (const ValueId input : node_.inputs) {
    void* first = input == kNone ? nullptr : memory.allocate(graph_.values[input].type.bytes());
    const auto bytes = input == kNone ? nullptr : content(input);
    if (bytes && !bytes->empty()) std::memcpy(first, bytes->data(), bytes->size());
    inputs.push_back(first);
  }
  for (const TensorType& type : outputs_) {
    outputs.push_back(type.dtype == DataType::Token ? nullptr : memory.allocate(type.bytes()));
  }
  const StepScalars scalars;
  KernelContext context;
  context.inputs = inputs.data();
  context.outputs = outputs.data();
  context.workspace = memory.allocate(kernel_->workspace_bytes());
  context.scalars = &scalars;
  kernel_->run(context);
  std::vector<std::shared_ptr<Bytes>> results;
  for (size_t i = 0; i < outputs.size(); ++i) {
    const auto* first = static_cast<const std::byte*>(outputs[i]);
    results.push_back(first ? std::make_shared<Bytes>(first, first + outputs_[i].bytes()) : nullptr);
  }
  return results;
}

}  // namespace arbalest
