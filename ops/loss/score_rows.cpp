// SPDX-License-Identifier: Apache-2.0
#include "ops/loss/score_rows.h"

#include <fmt/format.h>

#include "ops/definition.h"
#include "ops/names.h"

namespace arbalest {
namespace {

Shape without_axis(Shape shape, size_t axis) {
  shape.erase(shape.begin() + std::ptrdiff_t(axis));
  return shape;
}

// Kernels read labels in int32.
bool is_class_type(DataType type) {
  return type == DataType::Int32 || type == DataType::Int64 || type == DataType::Uint8;
}

}  // namespace

AttributeSpec class_axis_spec() {
  return int_spec("axis", 1, "of the classes: 1 of images, -1 of tokens");
}

size_t class_axis(const InferContext& context) {
  const TensorType& scores = floating_input(context, MetricInput::Scores);
  const auto axis = int64_t(normalized_axis(int_attribute(context.node(), "axis"), scores.shape.size()));
  if (scores.shape.size() < 2) {
    context.fail(
        fmt::format("{} is {}; expected rows of classes", input_name(context, MetricInput::Scores), to_string(scores)));
  }
  if (axis < 1 || axis >= int64_t(scores.shape.size())) {
    context.fail(fmt::format("attribute 'axis' is {}; expected an axis of {}, {}, after that of the samples",
                             int_attribute(context.node(), "axis"), input_name(context, MetricInput::Scores),
                             to_string(scores)));
  }
  return size_t(axis);
}

void check_classes(const InferContext& context) {
  const TensorType &scores = context.input(MetricInput::Scores), &label = context.input(MetricInput::Labels);
  const size_t axis = class_axis(context), last = scores.shape.size() - 1;
  const Shape places = without_axis(scores.shape, axis);
  if (is_class_type(label.dtype) && label.shape == places) return;
  std::string why = "one label a row of 'logits' (or, in floats, a target for each class)";
  if (last > 1) {
    why = fmt::format("a label for each place of {}, {}, whose classes lie along axis {}",
                      input_name(context, MetricInput::Scores), to_string(scores), axis);
    for (const size_t other : {size_t{1}, last}) {
      if (label.shape == without_axis(scores.shape, other))
        why += fmt::format("; axis = {} fits", other == last ? -1 : 1);
    }
  }
  expect_input(context, MetricInput::Labels, {is_class_type(label.dtype) ? label.dtype : DataType::Int32, places}, why);
}

bool has_other_rows(const InferContext& context) {
  const DataType label = context.input(MetricInput::Labels).dtype;
  return class_axis(context) + 1 != context.input(MetricInput::Scores).shape.size() ||
         (is_class_type(label) && label != DataType::Int32);
}

std::pair<ValueId, ValueId> rows_for_kernels(ExpandContext& context) {
  ValueId scores = context.input(MetricInput::Scores), label = context.input(MetricInput::Labels);
  const TensorType type = context.type(label);
  const auto rank = int64_t(context.type(scores).shape.size());
  const auto axis = int64_t(normalized_axis(int_attribute(context.node(), "axis"), size_t(rank)));
  if (axis + 1 != rank) {
    std::vector<int64_t> order;
    for (int64_t i = 0; i < rank; ++i) {
      if (i != axis) order.push_back(i);
    }
    order.push_back(axis);
    scores = context.add("Transpose", "rows", {scores}, 1, {{"perm", order}})[0];
    if (is_floating(type.dtype)) label = context.add("Transpose", "targets", {label}, 1, {{"perm", order}})[0];
  }
  if (is_class_type(type.dtype) && type.dtype != DataType::Int32) {
    // A label that int32 cannot hold stays one that is out of range.
    const char* cast = type.dtype == DataType::Int64 ? "arbalest.CastToNearest" : "Cast";
    label = context.add(cast, "label", {label}, 1, {{"to", onnx_number(DataType::Int32)}})[0];
  }
  return {scores, label};
}

}  // namespace arbalest
