// SPDX-License-Identifier: Apache-2.0

// Slice: the elements from start to before end along axes, every so many; and its gradient.

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "ops/definition.h"
#include "ops/shape/copy.h"
#include "ops/shape/cut.h"

namespace arbalest {

Cut::Cut(const Shape& x, const Ints& starts, const Ints& ends, const Ints& axes, const Ints& steps)
    : first(x.size(), 0), step(x.size(), 1), shape(x) {
  for (size_t i = 0; i < starts.size(); ++i) {
    const size_t axis = axes.empty() ? i : normalized_axis(axes[i], x.size());
    const int64_t extent = x[axis], by = steps.empty() ? 1 : steps[i];
    const auto bound = [&](int64_t at, int64_t least, int64_t most) {
      return std::clamp(at < 0 ? at + extent : at, least, most);
    };
    const int64_t begin =
        by > 0 ? bound(starts[i], 0, extent) : bound(starts[i], std::min<int64_t>(0, extent - 1), extent - 1);
    const int64_t end = by > 0 ? bound(ends[i], 0, extent) : bound(ends[i], -1, extent - 1);
    const int64_t span = by > 0 ? end - begin : begin - end;
    const uint64_t size = by > 0 ? uint64_t(by) : -uint64_t(by);
    first[axis] = begin;
    step[axis] = by;
    shape[axis] = span > 0 ? int64_t((uint64_t(span) - 1) / size) + 1 : 0;
  }
}

Cut::Cut(const Node& node, const Shape& x)
    : Cut(x, ints_attribute(node, "starts"), ints_attribute(node, "ends"), ints_attribute(node, "axes"),
          ints_attribute(node, "steps")) {}

int64_t Cut::offset(const Ints& strides) const {
  return std::inner_product(first.begin(), first.end(), strides.begin(), int64_t{0});
}

Cut::Ints Cut::steps(const Ints& strides) const {
  Ints steps(strides.size());
  for (size_t axis = 0; axis < steps.size(); ++axis) {
    steps[axis] = shape[axis] > 1 ? step[axis] * strides[axis] : strides[axis];  // a single step may be of any size
  }
  return steps;
}

namespace {

using Ints = Cut::Ints;

void infer_slice(InferContext& context) {
  check_rank(context);
  TensorType y = context.input(0);
  const Ints starts = context.ints("starts"), ends = context.ints("ends");
  const Ints axes = context.ints("axes"), steps = context.ints("steps");
  const auto expect_count = [&](const char* name, const Ints& list, bool optional) {
    if (list.size() == starts.size() || (optional && list.empty())) return;
    context.fail(fmt::format("'{}' is {} and 'starts' is {}; expected as many of both", name, to_string(list, '[', ']'),
                             to_string(starts, '[', ']')));
  };
  expect_count("ends", ends, false);
  expect_count("axes", axes, context.states("axes") ? false : true);
  expect_count("steps", steps, context.states("steps") ? false : true);
  if (std::find(steps.begin(), steps.end(), 0) != steps.end()) context.fail("'steps' holds a 0");
  named_axes(context, int64_t(y.shape.size()));
  if (starts.size() > y.shape.size()) {
    context.fail(fmt::format("'starts' is {} for {} axes", to_string(starts, '[', ']'), y.shape.size()));
  }
  y.shape = Cut(y.shape, starts, ends, axes, steps).shape;
  context.set_output(0, y);
}

void grad_slice(GradContext& c) {
  Attributes attributes = c.node().attributes;
  set_type(attributes, c.type(c.input(0)));
  c.add_input_gradient("arbalest.SliceGrad", {}, attributes);
}

void infer_slice_gradient(InferContext& context) {
  const TensorType& dy = context.input(0);
  const TensorType dx = stated_type(context.node(), dy.dtype);
  expect_input(context, 0, {dy.dtype, Cut(context.node(), dx.shape).shape}, "what Slice makes of 'shape'");
  context.set_output(0, dx);
}

struct SliceCase {
  TensorType x;
  Ints starts, ends, axes, steps;

  std::string name() const {
    return fmt::format("{}{} from {} to {} by {}", to_string(x),
                       x.layout == Layout::ChannelsLast ? " channels-last" : "", to_string(starts, '[', ']'),
                       to_string(ends, '[', ']'), to_string(steps, '[', ']'));
  }
  Attributes attributes() const {
    Attributes made = {{"starts", starts}, {"ends", ends}};
    if (!axes.empty()) made.set("axes", axes);
    if (!steps.empty()) made.set("steps", steps);
    return made;
  }
};

std::vector<SliceCase> slice_cases() {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min(), kMost = std::numeric_limits<int64_t>::max();
  const auto plain = [](Shape shape, DataType type = DataType::Float32) { return TensorType{type, std::move(shape)}; };
  const auto image = [&](Shape shape) { return plain(std::move(shape)).in(Layout::ChannelsLast); };
  return {{plain({9}), {2}, {7}, {}, {}},
          {plain({9}), {-1}, {kLeast}, {0}, {-1}},
          {plain({4, 16}), {8}, {16}, {1}, {}},
          {plain({4, 10}), {1, 0}, {-1, kMost}, {-2, -1}, {1, 3}},
          {plain({3, 5}), {7}, {9}, {0}, {}},
          {plain({0, 3}), {0}, {5}, {0}, {}},
          {plain({2, 3, 6, 5}), {4, 3}, {0, 0}, {2, 3}, {-2, -1}},
          {image({2, 8, 6, 5}), {1, 4}, {5, 8}, {2, 1}, {}},
          {image({2, 3, 6, 5}), {0, 5}, {4, kLeast}, {0, 2}, {1, kLeast}},
          {plain({5, 3}, DataType::Int64), {1}, {4}, {0}, {2}},
          {plain({5, 3}, DataType::Bool), {0}, {2}, {1}, {}}};
}

std::vector<Sample> slice_samples() {
  std::vector<Sample> samples;
  for (const SliceCase& c : slice_cases()) {
    samples.push_back({.name = c.name(),
                       .inputs = {{.type = c.x, .low = 0, .high = 1, .differentiable = c.x.elements() > 0}},
                       .attributes = c.attributes(),
                       .tolerance = 0});
  }
  return samples;
}

std::vector<Sample> slice_gradient_samples() {
  std::vector<Sample> samples;
  for (const SliceCase& c : slice_cases()) {
    TensorType dy = c.x;
    dy.shape = Cut(c.x.shape, c.starts, c.ends, c.axes, c.steps).shape;
    Attributes attributes = c.attributes();
    set_type(attributes, c.x);
    samples.push_back({.name = c.name(),
                       .inputs = {{.type = dy, .low = 0, .high = 1}},
                       .attributes = std::move(attributes),
                       .tolerance = 0});
  }
  return samples;
}

std::vector<AttributeSpec> slice_specs() {
  return {required_spec("starts", AttributeKind::Ints, "the first elements; negative counts from the end"),
          required_spec("ends", AttributeKind::Ints, "before which elements to end; negative counts from the end"),
          ints_spec("axes", {}, "along which; not given: the first ones"),
          ints_spec("steps", {}, "how far it is to the next element; negative: backwards; not given: 1")};
}

}  // namespace

Copying copies_of_slice(const KernelRequest& request) {
  const TensorType &x = request.inputs[0], &y = request.outputs[0];
  const Cut cut(request.node, x.shape);
  const Ints strides = memory_strides(x);
  return {.boxes = {BoxCopy(y.shape, memory_strides(y), 0, cut.steps(strides), cut.offset(strides))}};
}

Copying copies_of_slice_gradient(const KernelRequest& request) {
  const TensorType &dy = request.inputs[0], &dx = request.outputs[0];
  const Cut cut(request.node, dx.shape);
  const Ints strides = memory_strides(dx);
  return {.boxes = {BoxCopy(dy.shape, cut.steps(strides), cut.offset(strides), memory_strides(dy), 0)}, .fills = true};
}

void add_slice(OpRegistry& registry) {
  Op slice{.domain = "",
           .name = "Slice",
           .doc = "the elements of data from `starts` to before `ends` along `axes`",
           .inputs = {{.name = "data", .lowered = true}},
           .outputs = {{.name = "output", .lowered = true}},
           .attributes = slice_specs(),
           .layout = std::nullopt,
           .infer = infer_slice,
           .grad = grad_slice,
           .cost = elementwise_cost(0),
           .samples = slice_samples};
  for (const AttributeSpec& attribute : slice.attributes) {
    slice.inputs.push_back({.name = attribute.name, .arity = OperandSpec::Optional, .constant = true});
  }
  registry.add(std::move(slice));
  std::vector<AttributeSpec> attributes = slice_specs();
  for (AttributeSpec& spec : type_specs()) attributes.push_back(std::move(spec));
  registry.add({.domain = "arbalest",
                .name = "SliceGrad",
                .doc = "the gradient of Slice: dY where it was taken from, zeros around",
                .inputs = {{.name = "dY", .lowered = true}},
                .outputs = {{.name = "dX", .lowered = true}},
                .attributes = std::move(attributes),
                .internal = true,
                .layout = std::nullopt,
                .infer = infer_slice_gradient,
                .cost = elementwise_cost(0),
                .samples = slice_gradient_samples});
}

}  // namespace arbalest
