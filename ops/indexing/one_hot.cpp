// SPDX-License-Identifier: Apache-2.0

// OneHot: a row for each index, with one value at the index and another elsewhere.

#include "ops/indexing/one_hot.h"

#include <fmt/format.h>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/math/convert.h"
#include "ops/math/strided.h"
#include "ops/words.h"

namespace arbalest {

OneHotExtents::OneHotExtents(const KernelRequest& request) : elements(request.outputs[0].elements()) {
  const Shape& shape = request.outputs[0].shape;
  const size_t axis = normalized_axis(int_attribute(request.node, "axis"), shape.size());
  depth = shape[axis];
  for (size_t i = axis + 1; i < shape.size(); ++i) inner *= shape[i];
}

namespace {

void infer_one_hot(InferContext& context) {
  using In = OneHotInput;
  const TensorType &indices = number_input(context, In::Indices), &values = context.input(In::Values);
  const int64_t rank = int64_t(indices.shape.size()), axis = int_attribute(context.node(), "axis");
  if (axis < -rank - 1 || axis > rank || indices.shape.size() >= Strided::kMaxRank) {
    context.fail(fmt::format("attribute 'axis' is {} and {} is {}; expected {} to {}, and a rank below {}", axis,
                             input_name(context, In::Indices), to_string(indices), -rank - 1, rank, Strided::kMaxRank));
  }
  const double depth = context.number("depth");
  if (!(depth >= 1 && depth < double(int64_t{1} << 47))) {
    context.fail(fmt::format("'depth' is {}; expected 1 or more", depth));
  }
  expect_input(context, In::Values, {values.dtype, {2}}, "the value elsewhere, and that at the index");
  TensorType y{values.dtype, indices.shape};
  y.shape.insert(y.shape.begin() + (axis < 0 ? axis + rank + 1 : axis), int64_t(depth));
  context.set_output(0, y);
}

template <typename Word, typename Index>
std::unique_ptr<Kernel> one_hot_kernel(const KernelRequest& request) {
  return make_kernel([extents = OneHotExtents(request)](const KernelContext& c) {
    const Index* indices = input<Index>(c, OneHotInput::Indices);
    const Word* values = input<Word>(c, OneHotInput::Values);
    Word* y = output<Word>(c, 0);
    parallel_for(extents.elements, 4, [=, &extents](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto index = convert_number<int64_t>(widen(indices[extents.index_of(i)]));
        y[i] = values[extents.is_on(i, index)];
      }
    });
  });
}

std::unique_ptr<Kernel> one_hot_cpu(const KernelRequest& request) {
  return dispatch_element(request.inputs[0].dtype, [&](auto element) -> std::unique_ptr<Kernel> {
    using Index = decltype(element);
    return with_word(request.outputs[0].dtype,
                     [&](auto word) { return one_hot_kernel<decltype(word), Index>(request); });
  });
}

std::vector<Sample> one_hot_samples() {
  struct Case {
    TensorType indices;
    int64_t axis, depth;
    DataType values = DataType::Float32;
    double low = 0, high = 0;
  };
  std::vector<Sample> samples;
  for (const Case& c : {Case{{DataType::Int64, {5}}, -1, 4, DataType::Float32, -6, 6},
                        Case{{DataType::Int64, {}}, 0, 3, DataType::Float32, 0, 2},
                        Case{{DataType::Int32, {2, 3}}, 1, 7, DataType::Float32, -7, 6},
                        Case{{DataType::Uint8, {4, 3}}, 0, 5, DataType::Int64, 0, 6},
                        Case{{DataType::Float32, {6, 2}}, -2, 3, DataType::Float32, -3, 2.9},
                        Case{{DataType::Int64, {300}}, -1, 40, DataType::Bool, 0, 39},
                        Case{{DataType::Int64, {7}}, -1, 1, DataType::Int32, 0, 1},
                        Case{{DataType::Int32, {0, 2}}, 1, 3, DataType::Uint8, 0, 2}}) {
    const double high = c.values == DataType::Bool ? 2 : 9;
    samples.push_back(
        {.name = fmt::format("{} of {}, axis {}, as {}", c.depth, to_string(c.indices), c.axis, name_of(c.values)),
         .inputs = {{.type = c.indices, .low = c.low, .high = c.high, .differentiable = false},
                    {.type = {DataType::Token, {}}},
                    {.type = {c.values, {2}}, .low = 0, .high = high, .distinct = true}},
         .attributes = {{"axis", c.axis}, {"depth", double(c.depth)}},
         .tolerance = 0});
  }
  return samples;
}

}  // namespace

void register_indexing_one_hot(OpRegistry& registry) {
  registry.add(
      {.domain = "",
       .name = "OneHot",
       .doc = "a row of `depth` values for each index: the second of values at the index, the first elsewhere, and "
              "everywhere where the index is out of range",
       .inputs = {{.name = "indices"},
                  {.name = "depth", .arity = OperandSpec::Optional, .constant = true},
                  {.name = "values", .lowered = true}},
       .outputs = {{.name = "output", .lowered = true}},
       .attributes = {required_spec("depth", AttributeKind::Float, "the extent of the new axis"),
                      int_spec("axis", -1, "where the result has the new axis; negative counts from the end")},
       .infer = infer_one_hot,
       .cost = elementwise_cost(0),
       .samples = one_hot_samples,
       .cpu = one_hot_cpu});
}

}  // namespace arbalest
