// SPDX-License-Identifier: Apache-2.0

// Pad: elements before and after those of a tensor, or fewer of them.

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "ops/definition.h"
#include "ops/shape/copy.h"

namespace arbalest {
namespace {

using Ints = std::vector<int64_t>;

// Elements before and after, for each axis of a tensor; negative ones are taken away.
struct Pads {
  Ints before, after;

  Pads(size_t rank, const Ints& pads, const Ints& axes) : before(rank, 0), after(rank, 0) {
    const size_t count = pads.size() / 2;
    for (size_t i = 0; i < count; ++i) {
      const size_t axis = axes.empty() ? i : normalized_axis(axes[i], rank);
      before[axis] = pads[i];
      after[axis] = pads[count + i];
    }
  }
  Pads(const Node& node, size_t rank) : Pads(rank, ints_attribute(node, "pads"), ints_attribute(node, "axes")) {}
};

// Neighbouring elements of an axis of the output that are made of elements of the input, `step` apart: -1, 0 or 1.
struct Run {
  int64_t to, from, step, count;
};

// Which element a place outside of 0 to extent - 1 repeats; -1: none.
int64_t source_of(int64_t place, int64_t extent, const std::string& mode) {
  if (place >= 0 && place < extent) return place;
  if (mode == "edge") return std::clamp<int64_t>(place, 0, extent - 1);
  if (mode == "wrap") return (place % extent + extent) % extent;
  if (mode != "reflect") return -1;
  const int64_t period = std::max<int64_t>(1, 2 * (extent - 1)), phase = (place % period + period) % period;
  return std::min(phase, period - phase) % extent;
}

std::vector<Run> runs_of(int64_t extent, int64_t before, int64_t after, const std::string& mode) {
  std::vector<Run> runs;
  for (int64_t to = 0; to < extent + before + after; ++to) {
    const int64_t from = source_of(to - before, extent, mode);
    if (from < 0) continue;
    const bool follows = !runs.empty() && runs.back().to + runs.back().count == to;
    if (follows) {
      Run& last = runs.back();
      const int64_t step = from - (last.from + (last.count - 1) * last.step);
      if (last.count == 1 && step >= -1 && step <= 1) last.step = step;
      if (step == last.step) {
        ++last.count;
        continue;
      }
    }
    runs.push_back({to, from, 1, 1});
  }
  return runs;
}

void infer_pad(InferContext& context) {
  check_rank(context);
  TensorType y = context.input(0);
  const Ints pads = context.ints("pads"), axes = context.ints("axes");
  const size_t rank = y.shape.size(), named = axes.empty() ? rank : axes.size();
  context.number("constant_value");
  if (!axes.empty()) named_axes(context, int64_t(rank));
  if (pads.size() != 2 * named) {
    context.fail(fmt::format("'pads' is {}; expected two for each of {} axes, those before first",
                             to_string(pads, '[', ']'), named));
  }
  const Pads each(rank, pads, axes);
  const std::string mode = string_attribute(context.node(), "mode");
  for (size_t axis = 0; axis < rank; ++axis) {
    constexpr int64_t kMost = int64_t{1} << 47;
    const int64_t before = each.before[axis], after = each.after[axis], extent = y.shape[axis];
    const bool counts =
        before >= -extent && after >= -extent && before < kMost && after < kMost && extent + before + after >= 0;
    const bool source = extent > 0 || mode == "constant" || (before == 0 && after == 0);
    if (!counts || !source) {
      context.fail(fmt::format("'pads' has {} and {} for axis {} of {}, {}: {}", before, after, axis,
                               input_name(context, 0), to_string(context.input(0)),
                               counts ? "there is nothing to repeat" : "out of range"));
    }
    y.shape[axis] += before + after;
  }
  context.set_output(0, y);
}

// Gradient that one run contributes along an axis: the gradients of its elements, at the elements that they repeat. It
// is as long as the input's axis, with zeros elsewhere.
ValueId gathered_run(GradContext& c, ValueId gradient, int64_t axis, int64_t extent, const Run& run) {
  const bool mirrored = run.step < 0;
  const int64_t first = mirrored ? run.to + run.count - 1 : run.to, end = mirrored ? run.to - 1 : run.to + run.count;
  constexpr int64_t kBeforeFirst = std::numeric_limits<int64_t>::min();
  ValueId part = c.add("Slice", "grad_part", {gradient}, 1,
                       {{"axes", Ints{axis}},
                        {"starts", Ints{first}},
                        {"ends", Ints{end < 0 ? kBeforeFirst : end}},
                        {"steps", Ints{mirrored ? -1 : 1}}})[0];
  if (run.step == 0)
    part = c.add("ReduceSum", "grad_sum", {part}, 1, {{"axes", Ints{axis}}, {"keepdims", int64_t{1}}})[0];
  const int64_t before = mirrored ? run.from - run.count + 1 : run.from;
  const int64_t after = extent - before - (run.step == 0 ? 1 : run.count);
  if (before == 0 && after == 0) return part;
  return c.add("Pad", "grad_padded", {part}, 1, {{"axes", Ints{axis}}, {"pads", Ints{before, after}}})[0];
}

// Axis by axis: an element of the input gets the gradients of all that repeat it.
ValueId gradient_of_repeats(GradContext& c, const std::string& mode) {
  const Shape shape = c.type(c.input(0)).shape;
  const Pads pads(c.node(), shape.size());
  ValueId gradient = c.output_gradient(0);
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    if (pads.before[axis] == 0 && pads.after[axis] == 0) continue;
    ValueId sum = kNone;
    for (const Run& run : runs_of(shape[axis], pads.before[axis], pads.after[axis], mode)) {
      const ValueId part = gathered_run(c, gradient, int64_t(axis), shape[axis], run);
      sum = sum == kNone ? part : c.add("Add", "grad_input", {sum, part}, 1)[0];
    }
    if (sum == kNone) {  // everything was taken away
      sum =
          c.add("Pad", "grad_input", {gradient}, 1, {{"axes", Ints{int64_t(axis)}}, {"pads", Ints{shape[axis], 0}}})[0];
    }
    gradient = sum;
  }
  return gradient;
}

// The gradient of padding with a constant is that of the output with the padding cut off, by negative pads.
void grad_pad(GradContext& c) {
  if (!c.needs_gradient(0)) return;
  if (const std::string mode = string_attribute(c.node(), "mode"); mode != "constant") {
    return c.set_input_gradient(0, gradient_of_repeats(c, mode));
  }
  Ints pads = ints_attribute(c.node(), "pads");
  for (int64_t& pad : pads) pad = -pad;
  Attributes attributes = c.node().attributes;
  attributes.set("pads", pads);
  attributes.erase("constant_value");
  attributes.erase("value");
  c.set_input_gradient(0, c.add("Pad", "grad_input", {c.output_gradient(0)}, 1, attributes)[0]);
}

template <typename T>
uint64_t bits(T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));  // little-endian, as everywhere here
  return bits;
}

uint64_t bits_of(double value, DataType type) {
  switch (type) {
    case DataType::Float32: return bits(float(value));
    case DataType::Float64: return bits(value);
    case DataType::Bfloat16: return bits(bfloat16(float(value)));
    case DataType::Int32: return bits(int32_t(value));
    case DataType::Int64: return bits(int64_t(value));
    case DataType::Bool: return value != 0;
    default: return bits(uint8_t(value));
  }
}

struct PadCase {
  TensorType x;
  Ints pads, axes;
  std::string mode;
  double value = 0;
};

std::vector<Sample> pad_samples() {
  const auto plain = [](Shape shape, DataType type = DataType::Float32) { return TensorType{type, std::move(shape)}; };
  const auto image = [&](Shape shape) { return plain(std::move(shape)).in(Layout::ChannelsLast); };
  std::vector<Sample> samples;
  for (const PadCase& c : std::vector<PadCase>{{plain({5}), {2, 1}, {}, "constant"},
                                               {plain({3, 8}), {0, 4, 1, 8}, {}, "constant", 0.5},
                                               {plain({2, 3, 4, 5}), {1, 2, 3, 0}, {2, -1}, "constant", -2},
                                               {plain({2, 3, 4, 5}), {-1, 2, 0, -3}, {2, 3}, "constant"},
                                               {plain({0, 3}), {1, 1}, {0}, "constant", 1},
                                               {image({2, 8, 5, 4}), {1, 1, 1, 1}, {2, 3}, "constant"},
                                               {image({2, 3, 5, 4}), {0, 1, 2, 2, 1, 0, 3, 0}, {}, "constant", 7},
                                               {plain({5}), {4, 3}, {}, "reflect"},
                                               {plain({3}), {7, 8}, {}, "reflect"},
                                               {plain({1, 2}), {2, 0, 1, 0}, {}, "reflect"},
                                               {image({2, 8, 5, 4}), {1, 2, 3, 1}, {2, 3}, "reflect"},
                                               {plain({2, 3, 4}), {2, 3, 1, 2}, {0, 2}, "edge"},
                                               {image({2, 3, 5, 4}), {1, 2, 3, 1}, {2, 3}, "edge"},
                                               {plain({4, 3}), {2, 5, 1, 4}, {}, "wrap"},
                                               {plain({2, 6}), {0, -2, 0, 3}, {}, "reflect"},
                                               {plain({2, 6}), {2, -4, -1, -1}, {}, "edge"},
                                               {plain({3, 4}), {-1, 0, -2, 1}, {}, "wrap"},
                                               {plain({1, 65538}), {0, 0, 0, 1}, {}, "constant", 3},
                                               {plain({5}, DataType::Int64), {2, 1}, {}, "constant", 3},
                                               {plain({2, 3}, DataType::Bool), {0, 1, 0, 2}, {}, "edge"}}) {
    Attributes attributes = {{"pads", c.pads}, {"mode", c.mode}};
    if (!c.axes.empty()) attributes.set("axes", c.axes);
    if (c.value != 0) attributes.set("constant_value", c.value);
    samples.push_back({.name = fmt::format("{}{} {} by {}", to_string(c.x),
                                           c.x.layout == Layout::ChannelsLast ? " channels-last" : "", c.mode,
                                           to_string(c.pads, '[', ']')),
                       .inputs = {{.type = c.x, .low = 0, .high = 1, .differentiable = c.x.elements() > 0}},
                       .attributes = std::move(attributes),
                       .tolerance = 0});
  }
  return samples;
}

}  // namespace

// A box for each combination of the axes' runs.
Copying copies_of_pad(const KernelRequest& request) {
  const TensorType &x = request.inputs[0], &y = request.outputs[0];
  const std::string mode = string_attribute(request.node, "mode");
  const Pads pads(request.node, x.shape.size());
  const Ints to_strides = memory_strides(y), from_strides = memory_strides(x);
  struct Part {
    Shape box;
    Ints to_steps, from_steps;
    int64_t to = 0, from = 0;
  };
  std::vector<Part> parts(1);
  for (size_t axis = 0; axis < x.shape.size(); ++axis) {
    std::vector<Part> longer;
    for (const Part& part : parts) {
      for (const Run& run : runs_of(x.shape[axis], pads.before[axis], pads.after[axis], mode)) {
        Part next = part;
        next.box.push_back(run.count);
        next.to_steps.push_back(to_strides[axis]);
        next.from_steps.push_back(run.step * from_strides[axis]);
        next.to += run.to * to_strides[axis];
        next.from += run.from * from_strides[axis];
        longer.push_back(std::move(next));
      }
    }
    parts = std::move(longer);
  }
  const bool stated = request.node.attributes.find("constant_value");
  const double value = float_attribute(request.node, stated ? "constant_value" : "value");
  Copying copying{.boxes = {}, .fills = mode == "constant", .fill = bits_of(value, y.dtype)};
  for (const Part& part : parts) {
    copying.boxes.push_back(BoxCopy(part.box, part.to_steps, part.to, part.from_steps, part.from));
  }
  return copying;
}

void add_pad(OpRegistry& registry) {
  AttributeSpec mode = string_spec("mode", "constant", "what is put around");
  mode.choices = {"constant", "reflect", "edge", "wrap"};
  const auto operand = [](const char* name) {
    return OperandSpec{.name = name, .arity = OperandSpec::Optional, .constant = true};
  };
  registry.add(
      {.domain = "",
       .name = "Pad",
       .doc = "data with elements put around it along `axes`, or taken away",
       .inputs = {{.name = "data", .lowered = true}, operand("pads"), operand("constant_value"), operand("axes")},
       .outputs = {{.name = "output", .lowered = true}},
       .attributes = {required_spec("pads", AttributeKind::Ints,
                                    "how many before, for each axis, then how many after; negative: taken away"),
                      float_spec("constant_value", 0, "of mode constant"),
                      ints_spec("axes", {}, "those of the pads; not given: all"), std::move(mode),
                      float_spec("value", 0, "older opsets' constant_value")},
       .layout = std::nullopt,
       .infer = infer_pad,
       .grad = grad_pad,
       .cost = elementwise_cost(0),
       .samples = pad_samples});
}

}  // namespace arbalest
