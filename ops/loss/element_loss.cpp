// SPDX-License-Identifier: Apache-2.0

// SigmoidCrossEntropy, MeanSquaredError and L1Loss with their gradients: means over the elements that take part, those
// of the valid samples less missing labels. Their rules are in element_rules.h.

#include <fmt/format.h>

#include <cmath>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/loss/element_rules.h"
#include "ops/loss/operands.h"

namespace arbalest {
namespace {

constexpr int64_t kElementLossBlock = 4096;  // elements added up one by one; the same for any number of threads

// Without the axes of extent 1 past the first: a column is as good as a vector.
Shape without_ones(const Shape& shape) {
  Shape rest;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (axis == 0 || shape[axis] != 1) rest.push_back(shape[axis]);
  }
  return rest;
}

bool counts_labels(const Node& node) {
  return node.op->name.starts_with("Sigmoid");
}

void check_target(InferContext& context, size_t predictions) {
  const TensorType& type = context.input(predictions);
  const TensorType& target = context.input(predictions + LossInput::Target);
  const DataType floats = master_type(type.dtype);
  const bool whole = target.dtype == DataType::Int32 || target.dtype == DataType::Uint8;
  const bool fits = target.dtype == floats || (whole && counts_labels(context.node()));
  if (fits && without_ones(target.shape) == without_ones(type.shape)) return;
  context.fail(fmt::format("{} is {}; expected {}{} in the shape of {}, {}",
                           input_name(context, predictions + LossInput::Target), to_string(target), name_of(floats),
                           counts_labels(context.node()) ? ", int32 or uint8" : "", input_name(context, predictions),
                           to_string(type.shape)));
}

void check_label_weights(InferContext& context, size_t predictions) {
  const TensorType& type = context.input(predictions);
  const int64_t labels = type.shape.size() > 1 ? type.shape[1] : 1;
  const size_t operand = predictions + LossInput::Weights;
  if (context.has_input(operand)) {
    expect_input(context, operand, {master_type(type.dtype), {labels}}, "one weight a label");
  }
  if (!context.node().op->attribute_spec("pos_weight")) return;
  const std::vector<double> weights = floats_attribute(context.node(), "pos_weight");
  if (weights.empty()) return;
  if (context.has_input(operand)) context.fail("'pos_weight' is given twice: as an input and as an attribute");
  if (int64_t(weights.size()) != labels) {
    context.fail(fmt::format("attribute 'pos_weight' has {} numbers; expected one for each of the {} labels of {}",
                             weights.size(), labels, input_name(context, predictions)));
  }
  for (const double weight : weights) {
    if (weight >= 0 && std::isfinite(float(weight))) continue;
    context.fail(fmt::format("attribute 'pos_weight' holds {}; expected numbers of at least 0", weight));
  }
}

void check_element_operands(InferContext& context, size_t predictions) {
  const TensorType& type = floating_input(context, predictions);
  if (type.shape.empty()) {
    context.fail(fmt::format("{} is a scalar; expected the samples of a batch along its first axis",
                             input_name(context, predictions)));
  }
  check_target(context, predictions);
  if (counts_labels(context.node())) check_label_weights(context, predictions);
}

// Missing is -1 in labels of any type: 255 in uint8.
template <typename W, typename Target>
W target_value(Target target) {
  if constexpr (std::is_same_v<Target, uint8_t>) return target == 255 ? W(-1) : W(target);
  return W(target);
}

struct LossSum {
  double value = 0, weight = 0;
};

// Σ over `count` elements, of which element(i) gives the value and whether it counts. `workspace` holds a LossSum a
// block.
template <typename F>
LossSum sum_elements(int64_t count, void* workspace, const F& element) {
  const int64_t blocks = (count + kElementLossBlock - 1) / kElementLossBlock;
  LossSum* sums = static_cast<LossSum*>(workspace);
  parallel_for(blocks, 8 * kElementLossBlock, [=](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      LossSum sum;
      for (int64_t i = block * kElementLossBlock; i < std::min(count, (block + 1) * kElementLossBlock); ++i)
        element(i, sum);
      sums[block] = sum;
    }
  });
  LossSum all;
  for (int64_t block = 0; block < blocks; ++block) {
    all.value += sums[block].value;
    all.weight += sums[block].weight;
  }
  return all;
}

int64_t workspace_of(const ElementPlaces& places) {
  return (places.count() + kElementLossBlock - 1) / kElementLossBlock * int64_t(sizeof(LossSum));
}

template <typename Rule, typename T, typename Target>
std::unique_ptr<Kernel> loss_kernel(const KernelRequest& request) {
  using W = Wide<T>;
  using Out = LossOutput;
  const ElementPlaces places(request.inputs[LossInput::X], request.inputs[LossInput::Target]);
  const bool weighted = request.has_input(LossInput::Weights), weighs = request.has_output(Out::Weight);
  auto run = [=](const KernelContext& context) {
    const T* x = input<T>(context, LossInput::X);
    const Target* targets = input<Target>(context, LossInput::Target);
    const W* weights = weighted ? input<W>(context, LossInput::Weights) : nullptr;
    const int64_t count = valid_samples(context, places.rows) * places.per_row();
    const LossSum sum = sum_elements(count, context.workspace, [=](int64_t i, LossSum& to) {
      const W t = target_value<W>(targets[places.target(i)]), p = weights ? weights[places.label(i)] : W(1);
      if (!Rule::takes_part(t)) return;
      to.value += double(Rule::loss(widen(x[i]), t, p));
      to.weight += 1;
    });
    *output<W>(context, Out::Mean) = sum.weight > 0 ? W(sum.value / sum.weight) : W(0);
    if (weighs) *output<W>(context, Out::Weight) = W(sum.weight / double(std::max<int64_t>(1, places.per_row())));
  };
  return make_kernel(run, workspace_of(places));
}

template <typename Rule, typename T, typename Target>
std::unique_ptr<Kernel> element_gradient_kernel(const KernelRequest& request) {
  using W = Wide<T>;
  using In = LossGradInput;
  const ElementPlaces places(request.inputs[In::X], request.inputs[In::Target]);
  const bool weighted = request.has_input(LossGradInput::Weights);
  auto run = [=](const KernelContext& context) {
    const T* x = input<T>(context, In::X);
    const Target* targets = input<Target>(context, LossGradInput::Target);
    const W* weights = weighted ? input<W>(context, LossGradInput::Weights) : nullptr;
    T* dx = output<T>(context, 0);
    const int64_t count = valid_samples(context, places.rows) * places.per_row();
    const LossSum sum = sum_elements(count, context.workspace, [=](int64_t i, LossSum& to) {
      to.weight += Rule::takes_part(target_value<W>(targets[i]));  // all of a sample's, in any order
    });
    const W scale = sum.weight > 0 ? W(double(*input<W>(context, In::dLoss)) / sum.weight) : W(0);
    parallel_for(count, 16, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const W t = target_value<W>(targets[places.target(i)]), p = weights ? weights[places.label(i)] : W(1);
        dx[i] = narrow<T>(Rule::takes_part(t) ? Rule::gradient(widen(x[i]), t, p) * scale : W(0));
      }
    });
    std::fill(dx + count, dx + places.count(), T(0));
  };
  return make_kernel(run, workspace_of(places));
}

template <template <typename> typename Rule>
std::unique_ptr<Kernel> element_loss_cpu(const KernelRequest& request) {
  return dispatch_floating(request.inputs[0].dtype, [&](auto element) -> std::unique_ptr<Kernel> {
    using T = decltype(element);
    using R = Rule<Wide<T>>;
    switch (request.inputs[LossInput::Target].dtype) {
      case DataType::Int32: return loss_kernel<R, T, int32_t>(request);
      case DataType::Uint8: return loss_kernel<R, T, uint8_t>(request);
      default: return loss_kernel<R, T, Wide<T>>(request);
    }
  });
}

template <template <typename> typename Rule>
std::unique_ptr<Kernel> element_gradient_cpu(const KernelRequest& request) {
  return dispatch_floating(request.inputs[LossGradInput::X].dtype, [&](auto element) -> std::unique_ptr<Kernel> {
    using T = decltype(element);
    using R = Rule<Wide<T>>;
    switch (request.inputs[LossGradInput::Target].dtype) {
      case DataType::Int32: return element_gradient_kernel<R, T, int32_t>(request);
      case DataType::Uint8: return element_gradient_kernel<R, T, uint8_t>(request);
      default: return element_gradient_kernel<R, T, Wide<T>>(request);
    }
  });
}

struct ElementLossCase {
  const char* name;
  Shape predictions, targets;
  int32_t valid;
  DataType labels = DataType::Float32;
  double low = 0, high = 1;
  bool weighted = false;
  bool predictions_last = false, targets_last = false;  // channels
};

std::vector<Sample> element_loss_samples(const std::vector<ElementLossCase>& cases, double range, bool gradient) {
  std::vector<Sample> samples;
  for (const ElementLossCase& c : cases) {
    TensorType predictions{DataType::Float32, c.predictions}, targets{c.labels, c.targets};
    if (c.predictions_last) predictions = predictions.in(Layout::ChannelsLast);
    if (c.targets_last) targets = targets.in(Layout::ChannelsLast);
    const bool differentiable = c.labels == DataType::Float32 && !gradient && range < 3;
    std::vector<Sample::Input> inputs = {{predictions, -range, range}, {targets, c.low, c.high, differentiable}};
    if (c.weighted) inputs.push_back({{DataType::Float32, {c.predictions.at(1)}}, 0.2, 4, false});
    if (gradient) inputs.insert(inputs.begin(), {{DataType::Float32, {}}, 0.5, 2});
    samples.push_back({.name = c.name, .inputs = inputs, .tolerance = 1e-5, .scalars = {.valid = c.valid}});
    if (!gradient && c.low < 0 && range > 3) samples.back().output_count = 2;  // some labels are missing
  }
  return samples;
}

std::vector<Sample> sigmoid_samples(bool gradient) {
  const DataType whole = DataType::Int32, bytes = DataType::Uint8, floats = DataType::Float32;
  return element_loss_samples({{"labels", {17, 5}, {17, 5}, 17, whole},
                               {"missing labels", {16, 7}, {16, 7}, 13, whole, -1, 1, true},
                               {"all missing", {4, 3}, {4, 3}, 4, whole, -1, -1},
                               {"bytes", {9, 20}, {9, 20}, 9, bytes},
                               {"soft, weighted", {33, 14}, {33, 14}, 32, floats, 0, 1, true},
                               {"one label", {8}, {8}, 8, whole},
                               {"a column, bytes", {8, 1}, {8}, 5, bytes},
                               {"masks", {3, 2, 5, 7}, {3, 2, 5, 7}, 3, whole, -1, 1, true},
                               {"masks, channels last", {3, 2, 5, 7}, {3, 2, 5, 7}, 2, whole, -1, 1, true, true, true},
                               {"predictions, channels last", {3, 2, 5, 7}, {3, 2, 5, 7}, 3, whole, -1, 1, true, true},
                               {"labels, channels last", {3, 4, 5}, {3, 4, 5}, 2, floats, 0, 1, true, false, true},
                               {"many", {300, 700}, {300, 700}, 299, whole, -1, 1, true},
                               {"nothing valid", {4, 3}, {4, 3}, 0, whole},
                               {"no samples", {0, 3}, {0, 3}, 0, whole}},
                              8, gradient);
}

// Away from where prediction and target are equal, |x − t| has a gradient.
std::vector<Sample> distance_samples(bool gradient) {
  const DataType floats = DataType::Float32;
  return element_loss_samples(
      {{"above", {17, 5}, {17, 5}, 17, floats, -4, -2.5},
       {"below", {17, 5}, {17, 5}, 9, floats, 2.5, 4},
       {"a column", {8, 1}, {8}, 8, floats, 2.5, 4},
       {"a vector", {8}, {8, 1}, 8, floats, 2.5, 4},
       {"images", {3, 2, 5, 7}, {3, 2, 5, 7}, 2, floats, -4, -2.5},
       {"both channels last", {3, 2, 5, 7}, {3, 2, 5, 7}, 2, floats, -4, -2.5, false, true, true},
       {"targets channels last", {3, 2, 5, 7}, {3, 2, 5, 7}, 2, floats, 2.5, 4, false, false, true},
       {"many", {300, 700}, {300, 700}, 299, floats, 2.5, 4},
       {"nothing valid", {4, 3}, {4, 3}, 0, floats, 2.5, 4},
       {"no samples", {0, 3}, {0, 3}, 0, floats}},
      2, gradient);
}

void grad_sigmoid(GradContext& c) {
  if (!c.needs_gradient(0)) return;
  c.set_input_gradient(
      0, c.add("arbalest.SigmoidCrossEntropyGrad", "grad_logits",
               {c.output_gradient(0), c.input(0), c.input(LossInput::Target), c.input(LossInput::Weights)}, 1)[0]);
}

// A distance is the same either way, so the target's gradient is that of a prediction.
void grad_distance(GradContext& c) {
  using In = LossInput;
  const std::string op = c.node().op->qualified_name() + "Grad";
  if (c.needs_gradient(In::X)) {
    c.set_input_gradient(
        In::X, c.add(op, "grad_prediction", {c.output_gradient(0), c.input(In::X), c.input(In::Target)}, 1)[0]);
  }
  if (c.needs_gradient(In::Target)) {
    c.set_input_gradient(In::Target,
                         c.add(op, "grad_target", {c.output_gradient(0), c.input(In::Target), c.input(In::X)}, 1)[0]);
  }
}

// The attribute's weights become the operand, which kernels read.
void expand_label_weights(ExpandContext& c) {
  const ValueId weights =
      c.constant("pos_weight", master_type(c.type(c.input(0)).dtype), floats_attribute(c.node(), "pos_weight"));
  const std::vector<ValueId> made =
      c.add("arbalest.SigmoidCrossEntropy", "", {c.input(0), c.input(LossInput::Target), weights},
            int(c.node().outputs.size()));
  for (size_t i = 0; i < made.size(); ++i) c.replace_output(i, made[i]);
}

// A loss and its gradient, without kernels and gradient.
Op loss_op(std::string name, std::string doc, std::vector<OperandSpec> operands) {
  return {.domain = "arbalest",
          .name = std::move(name),
          .doc = std::move(doc),
          .inputs = std::move(operands),
          .outputs = {{.name = "loss"}},
          .layout = std::nullopt,
          .infer =
              [](InferContext& c) {
                check_element_operands(c, 0);
                const TensorType scalar{master_type(c.input(0).dtype), {}};
                c.set_output(0, scalar);
                c.set_output(LossOutput::Weight, scalar);  // of SigmoidCrossEntropy
              },
          .cost =
              [](const Graph& graph, const Node& node) {
                return Cost{4 * double(input_type(graph, node, 0).elements()), operand_bytes(graph, node)};
              },
          .metric = MetricSpec{.better = MetricSpec::Better::Lower, .least = 0},
          .compares = Comparison{Comparison::Target::Numbers}};
}

Op gradient_op(const Op& loss, std::string doc) {
  Op op{.domain = "arbalest",
        .name = loss.name + "Grad",
        .doc = std::move(doc),
        .inputs = loss.inputs,
        .outputs = {{.name = "d" + loss.inputs[0].name, .lowered = true}},
        .internal = true,
        .layout = std::nullopt,
        .infer =
            [](InferContext& c) {
              check_element_operands(c, 1);
              expect_input(c, LossGradInput::dLoss, {master_type(c.input(LossGradInput::X).dtype), {}},
                           "the type of the loss");
              c.set_output(0, c.input(LossGradInput::X));
            },
        .cost = elementwise_cost(4)};
  op.inputs.insert(op.inputs.begin(), {.name = "dloss"});
  return op;
}

}  // namespace

void register_loss_element_loss(OpRegistry& registry) {
  const std::vector<OperandSpec> pair = {{.name = "prediction", .lowered = true}, {.name = "target"}};
  Op sigmoid = loss_op(
      "SigmoidCrossEntropy",
      "the mean of −pos_weight · label · log σ(logits) − (1 − label) · log(1 − σ(logits)) over the "
      "labels of the valid samples; labels of -1 (255 in uint8, or NaN) are missing and take no part; and the "
      "number of those that are not missing, over the labels of a sample",
      {{.name = "logits", .lowered = true}, {.name = "label"}, {.name = "pos_weight", .arity = OperandSpec::Optional}});
  Op sigmoid_grad = gradient_op(sigmoid, "the gradient of SigmoidCrossEntropy; of missing labels it is 0");
  sigmoid.attributes = {
      floats_spec("pos_weight", {}, "for each label (axis 1): the weight of positives; none: all are 1")};
  sigmoid.outputs.push_back({.name = "loss_weight", .arity = OperandSpec::Optional});
  sigmoid.grad = grad_sigmoid;
  sigmoid.expand = expand_label_weights;
  sigmoid.expands = [](const InferContext& c) { return !floats_attribute(c.node(), "pos_weight").empty(); };
  sigmoid.samples = [] { return sigmoid_samples(false); };
  sigmoid.compares = Comparison{Comparison::Target::Labels, Comparison::Activation::Sigmoid};
  sigmoid.cpu = element_loss_cpu<SigmoidRule>;
  sigmoid_grad.samples = [] { return sigmoid_samples(true); };
  sigmoid_grad.cpu = element_gradient_cpu<SigmoidRule>;

  Op square =
      loss_op("MeanSquaredError", "the mean of (prediction − target)² over the elements of valid samples", pair);
  Op square_grad = gradient_op(square, "the gradient of MeanSquaredError for its first operand");
  square.cpu = element_loss_cpu<SquareRule>;
  square_grad.cpu = element_gradient_cpu<SquareRule>;
  Op absolute = loss_op("L1Loss", "the mean of |prediction − target| over the elements of valid samples", pair);
  Op absolute_grad = gradient_op(absolute, "the gradient of L1Loss for its first operand; 0 where they are equal");
  absolute.cpu = element_loss_cpu<AbsoluteRule>;
  absolute_grad.cpu = element_gradient_cpu<AbsoluteRule>;
  for (Op* op : {&square, &absolute}) {
    op->grad = grad_distance;
    op->samples = [] { return distance_samples(false); };
  }
  for (Op* op : {&square_grad, &absolute_grad}) op->samples = [] { return distance_samples(true); };
  for (Op* op : {&sigmoid, &sigmoid_grad, &square, &square_grad, &absolute, &absolute_grad}) {
    registry.add(std::move(*op));
  }
}

}  // namespace arbalest
