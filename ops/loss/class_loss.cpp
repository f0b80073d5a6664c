// SPDX-License-Identifier: Apache-2.0

// NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss: ONNX's losses of a class for each place. They become operators
// that pick the class's score.

#include <fmt/format.h>

#include <limits>

#include "ops/definition.h"
#include "ops/loss/operands.h"

namespace arbalest {
namespace {

void infer_class_loss(InferContext& context) {
  const TensorType &scores = floating_input(context, LossInput::X), &classes = context.input(LossInput::Target);
  if (scores.shape.size() < 2) {
    context.fail(
        fmt::format("{} is {}; expected (samples, classes, …)", input_name(context, LossInput::X), to_string(scores)));
  }
  if (classes.dtype != DataType::Int32 && classes.dtype != DataType::Int64) {
    context.fail(
        fmt::format("{} is {}; expected int32 or int64", input_name(context, LossInput::Target), to_string(classes)));
  }
  Shape places = scores.shape;
  places.erase(places.begin() + 1);
  const std::string why = fmt::format("as {} is {}", input_name(context, LossInput::X), to_string(scores));
  expect_input(context, LossInput::Target, {classes.dtype, places}, why);
  if (context.has_input(LossInput::Weights))
    expect_input(context, LossInput::Weights, {scores.dtype, {scores.shape[1]}}, why);
  const int64_t ignored = int_attribute(context.node(), "ignore_index");
  if (classes.dtype == DataType::Int32 && ignored != int32_t(ignored)) {
    context.fail(fmt::format("attribute 'ignore_index' is {}; expected an int32, as the classes are", ignored));
  }
  const bool each = string_attribute(context.node(), "reduction") == "none";
  context.set_output(ClassLossOutput::Loss, {scores.dtype, each ? places : Shape{}});
  context.set_output(ClassLossOutput::LogProbabilities, scores);
}

// Nodes for the operator as ONNX defines it. A place of the ignored class adds 0, and weighs 0 in the mean.
void expand_log_likelihood(ExpandContext& c) {
  const Attributes& attributes = c.node().attributes;
  const auto one = [&](const char* op, const char* label, std::vector<ValueId> inputs, Attributes given = {}) {
    return c.add(op, label, std::move(inputs), 1, std::move(given))[0];
  };
  const TensorType scores = c.type(c.input(LossInput::X));
  const DataType index = c.type(c.input(LossInput::Target)).dtype;
  const ValueId labels = c.input(LossInput::Target), weights = c.input(LossInput::Weights);
  const Attributes axis = {{"axes", std::vector<int64_t>{1}}};
  // A class below 0 becomes one that is out of range too: GatherElements would count it from the end.
  const ValueId first = c.constant("first", index, 0), end = c.constant("end", index, double(scores.shape[1]));
  ValueId classes = one("Where", "classes", {one("Less", "below", {labels, first}), end, labels});
  ValueId ignored = kNone, zero = kNone;
  if (attributes.find("ignore_index")) {
    const ValueId label = c.constant("ignored", index, double(int_attribute(c.node(), "ignore_index")));
    ignored = one("Equal", "is_ignored", {labels, label});
    classes = one("Where", "taken", {ignored, first, classes});
    zero = c.constant("zero", scores.dtype, 0);
  }
  const ValueId places = one("Unsqueeze", "places", {classes}, axis);
  const ValueId picked = one("GatherElements", "picked", {c.input(LossInput::X), places}, {{"axis", int64_t{1}}});
  ValueId loss = one("Neg", "each", {one("Squeeze", "score", {picked}, axis)}), weight = kNone;
  if (weights != kNone) {
    weight = one("Gather", "weight", {weights, classes}, {{"axis", int64_t{0}}});
    loss = one("Mul", "weighted", {loss, weight});
  }
  if (ignored != kNone) {
    loss = one("Where", "counted", {ignored, zero, loss});
    weight = one("Where", "share", {ignored, zero, weight == kNone ? c.constant("one", scores.dtype, 1) : weight});
  }
  const std::string reduction = string_attribute(c.node(), "reduction");
  const Attributes number = {{"keepdims", int64_t{0}}};
  if (reduction == "sum") loss = one("ReduceSum", "", {loss}, number);
  if (reduction == "mean") loss = one("ReduceMean", weight == kNone ? "" : "mean", {loss}, number);
  if (reduction == "mean" && weight != kNone) {
    loss = one("Div", "", {loss, one("ReduceMean", "mean_weight", {weight}, number)});
  }
  c.replace_output(0, loss);
}

void expand_cross_entropy(ExpandContext& c) {
  const ValueId logs = c.add("LogSoftmax", "log_prob", {c.input(LossInput::X)}, 1, {{"axis", int64_t{1}}})[0];
  c.replace_output(
      0, c.add("NegativeLogLikelihoodLoss", "", {logs, c.input(LossInput::Target), c.input(LossInput::Weights)}, 1,
               c.node().attributes)[0]);
  c.replace_output(ClassLossOutput::LogProbabilities, logs);
}

}  // namespace

void register_loss_class_loss(OpRegistry& registry) {
  AttributeSpec reduction =
      string_spec("reduction", "mean", "of the places; the mean is divided by the sum of their weights");
  reduction.choices = {"none", "sum", "mean"};
  Op op{
      .domain = "",
      .name = "NegativeLogLikelihoodLoss",
      .doc = "−input[class] of each place, times the class's weight; no gradient flows into a model's stored weights",
      .inputs = {plain("input"), plain("target"), plain("weight", OperandSpec::Optional).as(OperandSpec::ClassWeight)},
      .outputs = {{.name = "loss"}},
      .attributes = {int_spec("ignore_index", 0, "places of this class take no part; not given: all take part"),
                     std::move(reduction)},
      .infer = infer_class_loss,
      .expand = expand_log_likelihood};
  registry.add(op);
  op.name = "SoftmaxCrossEntropyLoss";
  op.doc = "NegativeLogLikelihoodLoss of the log-softmax of scores along axis 1, which is the second output";
  op.inputs[LossInput::X].name = "scores";
  op.inputs[LossInput::Target].name = "labels";
  op.inputs[LossInput::Weights].name = "weights";
  op.outputs = {{.name = "output"}, {.name = "log_prob", .arity = OperandSpec::Optional}};
  op.expand = expand_cross_entropy;
  registry.add(std::move(op));
}

}  // namespace arbalest
