// SPDX-License-Identifier: Apache-2.0

// GroupNormalization and InstanceNormalization: layers of arbalest.NormalizeGroups, and of elementwise operators that
// scale and shift. NormalizeGroups and its gradient have no kernels: the pass open_group_norms writes them as sums of
// each channel, what follows from these for a group, and elementwise operators, all of which regions join. The second
// part is that of arbalest.GroupMoments and arbalest.GroupMean. Their tensors have a number for each sample's channel.

#include "ops/norm/group_norm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "graph/constants.h"
#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/norm/layer_norm.h"

namespace arbalest {
namespace {

// InstanceNormalization has as many groups as channels.
int64_t groups_of(const Node& node, const TensorType& x) {
  return node.op->attribute_spec("num_groups") ? int_attribute_from(node, "num_groups", 1) : x.shape[1];
}

// (N, C, 1, …) for X (N, C, …).
TensorType of_channels(const TensorType& x) {
  Shape shape(x.shape.size(), 1);
  std::copy_n(x.shape.begin(), 2, shape.begin());
  return {master_type(x.dtype), shape};
}

void infer_group_norm(InferContext& context) {
  const TensorType& x = floating_input(context, LayerNormInput::X);
  const size_t least = context.node().op->attribute_spec("num_groups") ? 2 : 3;  // instances have pixels
  if (x.shape.size() < least) {
    context.fail(fmt::format("input 'X' is {}; expected (N, C{})", to_string(x), least == 2 ? ") or (N, C, …" : ", …"));
  }
  check_least_epsilon(context);
  const int64_t channels = x.shape[1], groups = groups_of(context.node(), x);
  if (groups == 0 || channels % groups != 0) {
    context.fail(fmt::format("attribute 'num_groups' is {}; expected a divisor of the {} channels of input 'X'", groups,
                             channels));
  }
  // Up to opset 20 there is a scale for each group, from 21 on for each channel.
  const bool by_group = context.input(LayerNormInput::Scale).shape == Shape{groups};
  const TensorType parameter{master_type(x.dtype), {by_group ? groups : channels}};
  for (const size_t i : {size_t{1}, size_t{2}}) {
    expect_input(context, i, parameter, fmt::format("since there are {} groups of {} channels", groups, channels));
  }
  context.set_output(0, x);
}

// Numbers of channels, or of groups, as an operand of X (N, C, …).
ValueId over_pixels(ExpandContext& context, ValueId numbers, const TensorType& x, std::string_view label) {
  const int64_t channels = x.shape[1], count = context.type(numbers).shape[0];
  const auto add = [&](const char* op, const char* more, ValueId value, Attributes attributes) {
    return context.add(op, std::string(label) + more, {value}, 1, std::move(attributes))[0];
  };
  if (count != channels) {
    const Shape whole{count, channels / count};
    numbers = add("Reshape", ".groups", numbers, {{"shape", Shape{count, 1}}});
    numbers = add("Expand", ".channels", numbers, {{"shape", whole}});
  }
  Shape shape(x.shape.size() - 1, 1);
  shape[0] = channels;
  return add("Reshape", "", numbers, {{"shape", shape}});
}

void expand_group_norm(ExpandContext& context) {
  using In = LayerNormInput;
  const Node& node = context.node();
  TensorType x = context.type(context.input(In::X));
  const int64_t groups = groups_of(node, x);
  const double epsilon = float_attribute(node, "epsilon");
  // Exporters write scales of 1 and shifts of 0 where a model has none, or has them elsewhere.
  const bool scaled = number_of(context.graph(), context.input(In::Scale)) != 1.0;
  const bool shifted = number_of(context.graph(), context.input(In::Bias)) != 0.0;
  ValueId y = context.input(In::X);
  const bool flat = x.shape.size() == 2;  // rows, which are images of one pixel
  if (flat) {
    y = context.add("Reshape", "image", {y}, 1, {{"shape", Shape{0, x.shape[1], 1}}})[0];
    x = context.type(y);
  }
  const char* const label = scaled || shifted || flat ? "normalized" : "";
  // One group is a sample, which has kernels of its own.
  y = groups == 1 ? context.add(op::NormalizeSamples, label, {y}, 1, {{"axis", int64_t{1}}, {"epsilon", epsilon}})[0]
                  : context.add(kNormalizeGroups, label, {y}, 3, {{"groups", groups}, {"epsilon", epsilon}})[0];
  if (scaled) {
    const ValueId scale = over_pixels(context, context.input(In::Scale), x, "scale");
    y = context.add("Mul", shifted || flat ? "scaled" : "", {y, scale}, 1)[0];
  }
  if (shifted) {
    const ValueId bias = over_pixels(context, context.input(In::Bias), x, "bias");
    y = context.add("Add", flat ? "shifted" : "", {y, bias}, 1)[0];
  }
  if (flat) y = context.add("Reshape", "", {y}, 1, {{"shape", Shape{0, x.shape[1]}}})[0];
  context.replace_output(0, y);
}

void check_groups(const InferContext& context, const TensorType& x) {
  const int64_t groups = int_attribute_from(context.node(), "groups", 1);
  if (x.shape.size() < 3 || x.shape[1] % groups != 0) {
    context.fail(fmt::format("input '{}' is {}; expected (N, C, …) with channels for {} groups",
                             context.node().op->inputs.front().name, to_string(x), groups));
  }
}

void infer_normalize_groups(InferContext& context) {
  const TensorType& x = floating_input(context, LayerNormInput::X);
  check_groups(context, x);
  context.set_output(NormalizeGroupsOutput::Y, x);
  for (const size_t i : {NormalizeGroupsOutput::Mean, NormalizeGroupsOutput::InvStd}) {
    context.set_output(i, of_channels(x));
  }
}

void infer_normalize_groups_grad(InferContext& context) {
  using In = NormalizeGroupsGradInput;
  const TensorType& x = floating_input(context, In::X);
  check_groups(context, x);
  expect_input(context, In::dY, x, "the type of 'X'");
  for (const size_t i : {In::Mean, In::InvStd}) expect_input(context, i, of_channels(x), "numbers of 'X'");
  context.set_output(0, x);
}

void grad_normalize_groups(GradContext& c) {
  using Out = NormalizeGroupsOutput;
  if (c.output_gradient(Out::Y) == kNone || !c.needs_gradient(LayerNormInput::X)) return;
  c.set_input_gradient(LayerNormInput::X, c.add(kNormalizeGroupsGrad, "grad",
                                                {c.output_gradient(Out::Y), c.input(LayerNormInput::X),
                                                 c.output(Out::Mean), c.output(Out::InvStd)},
                                                1, {{"groups", int_attribute(c.node(), "groups")}})[0]);
}

// Tensors (N, C, 1, …) of one type.
void infer_of_channels(InferContext& context) {
  const TensorType& x = floating_input(context, 0);
  check_groups(context, x);
  if (x.shape != of_channels(x).shape) {
    context.fail(fmt::format("input '{}' is {}; expected a number for each sample's channel",
                             context.node().op->inputs.front().name, to_string(x)));
  }
  constexpr size_t kSecond = GroupMeanOperand::B;
  if (context.has_input(kSecond)) expect_input(context, kSecond, x, "the type of the first input");
  for (const size_t i : {size_t{0}, kSecond}) context.set_output(i, of_channels(x));
}

template <typename T>
double mean_of(const T* first, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += double(first[i]);
  return sum / double(count);
}

std::unique_ptr<Kernel> group_mean_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  return make_kernel(
      [groups = ChannelGroups(request), two = request.has_input(GroupMeanOperand::B) &&
                                              request.has_output(GroupMeanOperand::B)](const KernelContext& context) {
        for (size_t i = 0; i < (two ? 2 : 1); ++i) {
          const T* x = input<T>(context, i);
          T* y = output<T>(context, i);
          for (int64_t group = 0; group < groups.count; ++group) {
            const int64_t at = group * groups.channels;
            std::fill_n(y + at, groups.channels, T(mean_of(x + at, groups.channels)));
          }
        }
      });
}

std::unique_ptr<Kernel> group_moments_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using In = GroupMomentsInput;
  using Out = GroupMomentsOutput;
  const bool centred = !request.has_input(In::Means), wants_mean = request.has_output(Out::Mean);
  const double epsilon = float_attribute(request.node, "epsilon");
  return make_kernel([=, groups = ChannelGroups(request)](const KernelContext& context) {
    const T *squares = input<T>(context, In::Squares), *means = centred ? nullptr : input<T>(context, In::Means);
    for (int64_t group = 0; group < groups.count; ++group) {
      const int64_t at = group * groups.channels;
      const double mean = centred ? 0 : mean_of(means + at, groups.channels);
      const double variance = std::max(0.0, mean_of(squares + at, groups.channels) - mean * mean);
      std::fill_n(output<T>(context, Out::InvStd) + at, groups.channels, T(1 / std::sqrt(variance + epsilon)));
      if (wants_mean) std::fill_n(output<T>(context, Out::Mean) + at, groups.channels, T(mean));
    }
  });
}

struct GroupCase {
  Shape shape;
  int64_t groups;
};
const GroupCase kGroupCases[] = {{{3, 12, 1, 1}, 4}, {{2, 96, 1}, 2}, {{1, 5, 1, 1, 1}, 5}, {{7, 6, 1, 1}, 1}};

std::vector<Sample> group_mean_samples() {
  std::vector<Sample> samples;
  for (const GroupCase& c : kGroupCases) {
    for (const int count : {1, 2}) {
      samples.push_back({.name = fmt::format("{} in {}, {}", to_string(c.shape), c.groups, count),
                         .inputs = std::vector<Sample::Input>(size_t(count), {{DataType::Float32, c.shape}}),
                         .output_count = count,
                         .attributes = {{"groups", c.groups}}});
    }
  }
  return samples;
}

std::vector<Sample> group_moments_samples() {
  std::vector<Sample> samples;
  for (const GroupCase& c : kGroupCases) {
    const Sample::Input squares{{DataType::Float32, c.shape}, 2, 5}, means{{DataType::Float32, c.shape}, -1, 1};
    const Attributes attributes = {{"groups", c.groups}, {"epsilon", 1e-3}};
    const std::string name = fmt::format("{} in {}", to_string(c.shape), c.groups);
    samples.push_back({.name = name, .inputs = {squares, means}, .output_count = 2, .attributes = attributes});
    samples.push_back({.name = name + ", centred", .inputs = {squares}, .attributes = attributes});
  }
  return samples;
}

AttributeSpec group_epsilon_spec() {
  return float_spec("epsilon", 1e-5, "added to the variance");
}
AttributeSpec groups_spec() {
  return required_spec("groups", AttributeKind::Int, "groups of channels");
}

void register_parts(OpRegistry& registry) {
  Op op{.domain = "arbalest",
        .name = "NormalizeGroups",
        .doc = "(X − mean) / deviation of each group of a sample's channels; the means and 1 over the deviations",
        .inputs = {lowered("X")},
        .outputs = {{.name = "Y", .lowered = true}, {.name = "Mean"}, {.name = "InvStdDev"}},
        .attributes = {groups_spec(), group_epsilon_spec()},
        .internal = true,
        .layout = std::nullopt,
        .infer = infer_normalize_groups,
        .grad = grad_normalize_groups,
        .cost = elementwise_cost(6),
        .normalises = true};
  registry.add(op);
  op.name = "NormalizeGroupsGrad";
  op.doc = "the gradient of NormalizeGroups";
  op.inputs = {lowered("dY"), lowered("X"), plain("Mean"), plain("InvStdDev")};
  op.outputs = {{.name = "dX", .lowered = true}};
  op.attributes = {groups_spec()};
  op.infer = infer_normalize_groups_grad;
  op.grad = nullptr;
  op.normalises = false;
  op.cost = elementwise_cost(14);
  registry.add(op);
  registry.add(
      {.domain = "arbalest",
       .name = "GroupMoments",
       .doc = "1 over the deviation of each group, and its mean, from means of channels: of squares, and of what was "
              "squared, unless that has a mean of 0",
       .inputs = {plain("squares"), plain("means", OperandSpec::Optional)},
       .outputs = {{.name = "InvStdDev"}, {.name = "Mean", .arity = OperandSpec::Optional}},
       .attributes = {groups_spec(), group_epsilon_spec()},
       .internal = true,
       .layout = std::nullopt,
       .infer = infer_of_channels,
       .samples = group_moments_samples,
       .cpu = floating_kernel([](const KernelRequest& r, auto t) { return group_moments_cpu(r, t); })});
  registry.add({.domain = "arbalest",
                .name = "GroupMean",
                .doc = "the mean of each group, in place of each of its channels, of one tensor or two",
                .inputs = {plain("A"), plain("B", OperandSpec::Optional)},
                .outputs = {{.name = "MeanA"}, {.name = "MeanB", .arity = OperandSpec::Optional}},
                .attributes = {groups_spec()},
                .internal = true,
                .layout = std::nullopt,
                .infer = infer_of_channels,
                .samples = group_mean_samples,
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return group_mean_cpu(r, t); })});
}

}  // namespace

void register_norm_group_norm(OpRegistry& registry) {
  register_parts(registry);
  Op op{.domain = "",
        .name = "GroupNormalization",
        .doc = "groups of channels are normalised sample by sample, then scaled and shifted",
        .inputs = {lowered("X"), plain("scale").as(OperandSpec::Scale), plain("bias").as(OperandSpec::Bias)},
        .outputs = {{.name = "Y", .lowered = true}},
        .attributes = {group_epsilon_spec(), required_spec("num_groups", AttributeKind::Int, "groups of channels"),
                       int_spec("stash_type", 1, "not read: statistics are float or better")},
        .layout = std::nullopt,
        .infer = infer_group_norm,
        .expand = expand_group_norm};
  registry.add(op);
  op.name = "InstanceNormalization";
  op.doc = "channels are normalised sample by sample, then scaled and shifted";
  op.inputs[LayerNormInput::X].name = "input";
  op.inputs[LayerNormInput::Bias].name = "B";
  op.outputs[0].name = "output";
  op.attributes.resize(1);
  registry.add(op);
}

}  // namespace arbalest
