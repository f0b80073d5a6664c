#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "graph/op.h"
#include "graph/passes/batch_norms.h"
#include "graph/passes/passes.h"

namespace arbalest {
namespace {

class GradientSumFusion {
 public:
  explicit GradientSumFusion(Graph& graph) : graph_(graph), readers_(graph.consumers()), key_(graph.nodes.size()) {
    std::iota(key_.begin(), key_.end(), int64_t{0});
  }

  void run() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      const std::string op = graph_.nodes[n].op->qualified_name();
      if (op == "arbalest.BatchNormGrad") read_both(graph_.nodes[n]);
      if (op == "Add") add_in_place(n);
    }
    reorder_nodes(graph_, key_);
  }

 private:
  const Value& value(ValueId id) const { return graph_.values[size_t(id)]; }

  // Whether the sum is of two tensors of its type, and no part of another value.
  bool is_plain_sum(const Node& add) const {
    const Value& sum = value(add.outputs[0]);
    return value(add.inputs[0]).type == sum.type && value(add.inputs[1]).type == sum.type && sum.view.base == kNone;
  }

  // A sum that only the batch norm's gradient reads becomes that one's dY and dY2.
  void read_both(Node& norm) {
    constexpr size_t kSecond = 7;  // dY2
    if (norm.inputs.size() > kSecond) return;
    const ValueId gradient = norm.inputs[0];
    const NodeId add = value(gradient).producer;
    if (add == kNone || graph_.nodes[size_t(add)].op->qualified_name() != "Add") return;
    if (!is_plain_sum(graph_.nodes[size_t(add)]) || readers_[size_t(gradient)].size() != 1) return;
    const std::vector<ValueId> terms = graph_.nodes[size_t(add)].inputs;
    norm.inputs[0] = terms[0];
    norm.inputs.resize(kSecond, kNone);
    norm.inputs.push_back(terms[1]);
    key_[size_t(add)] = -1;
  }

  // Which of the parts of a BatchNormPartsGrad the value is the gradient of, without an addend so far.
  std::optional<size_t> part_of(ValueId gradient) const {
    const NodeId producer = value(gradient).producer;
    if (producer == kNone || graph_.nodes[size_t(producer)].op->qualified_name() != "arbalest.BatchNormPartsGrad") {
      return {};
    }
    const Node& norm = graph_.nodes[size_t(producer)];
    for (size_t i = 0; i < gradient_parts(norm.inputs.size()); ++i) {
      if (norm.outputs[part_gradient(i)] == gradient && norm.inputs[gradient_addend(i)] == kNone) return i;
    }
    return {};
  }

  // Whether the value is computed anew each time, in memory of its own that nothing reads but one node.
  bool may_be_written_to(ValueId id) const {
    const NodeId producer = value(id).producer;
    if (value(id).role != Role::Activation || value(id).view.base != kNone || producer == kNone ||
        readers_[size_t(id)].size() != 1) {
      return false;
    }
    const Node& node = graph_.nodes[size_t(producer)];
    // Its addend, if it has one, was found writable already.
    if (node.op->qualified_name() == "arbalest.BatchNormPartsGrad") return true;
    return std::none_of(node.op->aliases.begin(), node.op->aliases.end(), [&](const std::pair<int, int>& alias) {
      return size_t(alias.first) < node.outputs.size() && node.outputs[size_t(alias.first)] == id;
    });
  }

  // Lets a BatchNormPartsGrad add its gradient of a part in place to another gradient of that part that is available
  // before it.
  void add_in_place(size_t n) {
    const Node add = graph_.nodes[n];
    if (!is_plain_sum(add)) return;
    for (const auto& [own, other] :
         {std::pair(add.inputs[0], add.inputs[1]), std::pair(add.inputs[1], add.inputs[0])}) {
      const std::optional<size_t> part = part_of(own);
      if (!part || readers_[size_t(own)].size() != 1 || !may_be_written_to(other)) continue;
      const NodeId norm = value(own).producer;
      if (value(other).producer >= norm) continue;
      Node& node = graph_.nodes[size_t(norm)];
      node.inputs[gradient_addend(*part)] = other;
      node.outputs[part_gradient(*part)] = add.outputs[0];
      graph_.values[size_t(add.outputs[0])].producer = norm;
      key_[n] = -1;
      return;
    }
  }

  Graph& graph_;
  const std::vector<std::vector<NodeId>> readers_;  // as they were before
  std::vector<int64_t> key_;
};

}  // namespace

void fuse_gradient_sums(Graph& graph) {
  GradientSumFusion(graph).run();
}

}  // namespace arbalest
