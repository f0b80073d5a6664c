// SPDX-License-Identifier: Apache-2.0

// Choose: one of two values, by a condition that is known when the graph is read. ONNX's If becomes such nodes.

#include <fmt/format.h>

#include "graph/constants.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

void infer_choose(InferContext& context) {
  const TensorType& condition = context.input(kChoiceCondition);
  if (condition.dtype != DataType::Bool || condition.elements() != 1) {
    context.fail(fmt::format("input 'condition' is {}; expected one bool", to_string(condition)));
  }
  const size_t chosen = chosen_operand(context.graph(), context.node());
  const std::string& name = context.graph().values[context.node().inputs[kChoiceCondition]].name;
  if (chosen == 0) {
    context.fail(
        fmt::format("the condition '{}' is computed when the graph runs; expected a constant, or what follows "
                    "from constants and shapes",
                    name));
  }
  if (!context.has_input(chosen)) {
    context.fail(
        fmt::format("the condition '{}' is {} for this batch, and was {} for the one that the graph was read "
                    "with; expected a condition that does not follow from the size of the batch",
                    name, chosen == kChoiceThen, chosen != kChoiceThen));
  }
  context.set_output(0, context.input(chosen));
}

std::vector<std::byte> content_of_chosen(const InferContext& context) {
  const Node& node = context.node();
  const auto content = content_of(context.graph(), node.inputs[chosen_operand(context.graph(), node)]);
  return content ? *content : std::vector<std::byte>();
}

// The gradient goes to the one operand that is left once the condition is known.
void grad_choose(GradContext& context) {
  const size_t chosen = context.input(kChoiceThen) != kNone ? kChoiceThen : kChoiceElse;
  if (context.needs_gradient(chosen)) context.set_input_gradient(chosen, context.output_gradient(0));
}

}  // namespace

void register_shape_choose(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "Choose",
                .doc = "then or else, by a condition that is known when the graph is read: ONNX's If",
                .inputs = {{.name = "condition"},
                           {.name = "then", .arity = OperandSpec::Optional, .lowered = true},
                           {.name = "else", .arity = OperandSpec::Optional, .lowered = true}},
                .outputs = {{.name = "chosen", .lowered = true}},
                .layout = std::nullopt,
                .infer = infer_choose,
                .content = content_of_chosen,
                .grad = grad_choose});
}

}  // namespace arbalest
