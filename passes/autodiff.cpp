// SPDX-License-Identifier: Apache-2.0
#include "passes/autodiff.h"

#include <fmt/format.h>

#include "graph/layouts.h"
#include "graph/op.h"
#include "ops/names.h"

namespace arbalest {
namespace {

bool stops_gradients(const Node& node) {
  return node.is(op::StopGradient);
}

// RandomUniformLike and RandomNormalLike: of their input only the shape counts.
bool draws_anew(const Node& node) {
  return node.is(op::RandomUniformLike) || node.is(op::RandomNormalLike);
}

class Walk {
 public:
  Walk(Graph& graph, std::span<const ValueId> wrt) : graph_(graph), depends_(graph.values.size(), false) {
    for (const ValueId value : wrt) depends_[value] = true;
    for (const Node& node : graph.nodes) {
      if (stops_gradients(node) || draws_anew(node)) continue;
      bool any = false;
      for (const ValueId input : node.inputs) any = any || (input != kNone && depends_[input]);
      for (const ValueId output : node.outputs) {
        if (output != kNone) depends_[output] = depends_[output] || any;
      }
    }
  }

  bool depends(ValueId value) const { return value != kNone && depends_[value]; }

  const Table<ValueId, ValueId>& run(ValueId loss, ValueId given) {
    gradient_.assign(graph_.values.size(), kNone);
    const ValueId first = given == kNone ? seed(loss) : given;  // before gradient_, which it may move, is looked into
    gradient_[loss] = first;
    for (NodeId n = graph_.nodes.end_id(); n-- > 0;) visit(n);
    return gradient_;
  }

 private:
  ValueId seed(ValueId loss) {
    const TensorType type = graph_.values[loss].type;
    const ValueId one = graph_.add_value(graph_.values[loss].name + ".seed", type, Role::Constant);
    graph_.values[one].initializer = {Initializer::Kind::Constant, 1.0, nullptr};
    gradient_.resize(graph_.values.size(), kNone);
    return one;
  }

  void visit(NodeId id) {
    const Node node = graph_.nodes[id];  // a copy: grad() appends nodes
    if (stops_gradients(node)) return node.op->for_inference(graph_, id);
    std::vector<ValueId> output_gradients;
    bool reached = false;
    for (const ValueId output : node.outputs) {
      output_gradients.push_back(output == kNone ? kNone : gradient_[output]);
      reached = reached || output_gradients.back() != kNone;
    }
    std::vector<bool> needs;
    bool needed = false;
    for (const ValueId input : node.inputs) {
      needs.push_back(depends(input));
      needed = needed || needs.back();
    }
    if (!reached || !needed) return;
    if (!node.op->grad) fail(node, "the operator has no gradient, but a parameter reaches the loss through it");

    std::vector<ValueId> input_gradients(node.inputs.size(), kNone);
    GradContext context(graph_, id, output_gradients, needs, input_gradients);
    node.op->grad(context);
    gradient_.resize(graph_.values.size(), kNone);
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!needs[i] || input_gradients[i] == kNone) continue;
      // A gradient lies as its value does: parameters are updated with theirs element by element.
      const Layout layout = graph_.values[node.inputs[i]].type.layout;
      Node backward = node;
      backward.stage = Stage::Backward;
      const ValueId gradient = in_layout(graph_, input_gradients[i], layout, backward);
      gradient_.resize(graph_.values.size(), kNone);
      accumulate(node, node.inputs[i], gradient);
    }
  }

  // A value that several nodes read gets the sum of what flows back from each.
  void accumulate(const Node& node, ValueId value, ValueId gradient) {
    ValueId& sum = gradient_[value];
    if (sum == kNone) {
      sum = gradient;
      return;
    }
    const NodeId add =
        graph_.add_node(graph_.op(op::Add), fmt::format("{}.sum", graph_.values[value].name), {sum, gradient}, 1);
    graph_.nodes[add].stage = Stage::Backward;
    graph_.nodes[add].where = node.where;
    infer(graph_, add);
    sum = graph_.nodes[add].output();
    gradient_.resize(graph_.values.size(), kNone);
  }

  Graph& graph_;
  Table<ValueId, bool> depends_;
  Table<ValueId, ValueId> gradient_;
};

}  // namespace

std::vector<ValueId> add_gradients(Graph& graph, ValueId loss, std::span<const ValueId> wrt, ValueId seed) {
  const Value value = graph.values[loss];
  if (value.type.elements() != 1) {
    throw GraphError(value.where,
                     fmt::format("the loss '{}' is {}, expected a scalar", value.name, to_string(value.type)));
  }
  Walk walk(graph, wrt);
  if (!walk.depends(loss)) {
    throw GraphError(value.where, fmt::format("the loss '{}' depends on no parameter", value.name));
  }
  const Table<ValueId, ValueId>& gradient_of = walk.run(loss, seed);
  std::vector<ValueId> gradients;
  for (const ValueId parameter : wrt) gradients.push_back(gradient_of[parameter]);
  return gradients;
}

}  // namespace arbalest
