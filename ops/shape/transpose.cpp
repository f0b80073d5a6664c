// SPDX-License-Identifier: Apache-2.0

// Transpose: the axes of a tensor in another order. Attention splits heads with it.

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "graph/layouts.h"
#include "ops/definition.h"
#include "ops/math/elementwise_cpu.h"
#include "ops/shape/transpose.h"

namespace arbalest {

std::vector<int64_t> permutation_of(const Node& node, size_t rank) {
  std::vector<int64_t> permutation = ints_attribute(node, "perm");
  if (permutation.empty()) {
    permutation.resize(rank);
    std::iota(permutation.rbegin(), permutation.rend(), int64_t{0});
  }
  return permutation;
}

Strided transposing_walk(const KernelRequest& request) {
  const std::vector<int64_t> from = memory_strides(request.inputs[0]);
  std::vector<int64_t> permuted;
  for (const int64_t axis : permutation_of(request.node, from.size())) permuted.push_back(from[size_t(axis)]);
  return Strided(request.outputs[0].shape, {memory_strides(request.outputs[0]), permuted});
}

namespace {

void infer_transpose(InferContext& context) {
  const TensorType& x = context.input(0);
  const size_t rank = x.shape.size();
  if (rank > Strided::kMaxRank) {
    context.fail(fmt::format("input 'X' is {}; expected a rank of at most {}", to_string(x), Strided::kMaxRank));
  }
  const std::vector<int64_t> permutation = permutation_of(context.node(), rank);
  std::vector<int64_t> sorted = permutation, axes(rank);
  std::sort(sorted.begin(), sorted.end());
  std::iota(axes.begin(), axes.end(), int64_t{0});
  if (sorted != axes) {
    context.fail(fmt::format("attribute 'perm' is {}; expected the axes 0 to {} of input 'X', {}, each once",
                             to_string(permutation, '[', ']'), int64_t(rank) - 1, to_string(x)));
  }
  TensorType y{x.dtype, {}};
  for (const int64_t axis : permutation) y.shape.push_back(x.shape[size_t(axis)]);
  // A result that is an image keeps the layout of images, at no cost; a reader that wants it row-major pays for one
  // copy either way.
  const bool image = rank >= 4 && keeps_memory(permutation, x.layout, Layout::ChannelsLast);
  context.set_output(0, image ? y.in(Layout::ChannelsLast) : y);
}

void grad_transpose(GradContext& c) {
  const std::vector<int64_t> permutation = permutation_of(c.node(), c.type(c.input(0)).shape.size());
  std::vector<int64_t> back(permutation.size());
  for (size_t axis = 0; axis < back.size(); ++axis) back[size_t(permutation[axis])] = int64_t(axis);
  // If the input has another layout than `to`, autodiff changes the layout: one copy, as Transpose would need.
  const Layout from = c.type(c.output_gradient(0)).layout;
  const Layout to = from == Layout::ChannelsLast ? Layout::RowMajor : Layout::ChannelsLast;
  const char* op = keeps_memory(back, from, to) ? "arbalest.TransposeInPlace" : "Transpose";
  c.add_input_gradient(op, {}, {{"perm", back}});
}

void infer_in_place(InferContext& context) {
  infer_transpose(context);
  const TensorType& x = context.input(0);
  const Layout to = x.layout == Layout::ChannelsLast ? Layout::RowMajor : Layout::ChannelsLast;
  if (keeps_memory(permutation_of(context.node(), x.shape.size()), x.layout, to)) return;
  context.fail(fmt::format("input 'X' is {}, whose elements would move", to_string(x)));
}

std::unique_ptr<Kernel> transpose_cpu(const KernelRequest& request) {
  const TensorType& y = request.outputs[0];
  return make_kernel([walk = transposing_walk(request), count = y.elements(), bytes = size_of(y.dtype)](
                         const KernelContext& c) { copy_strided(walk, count, bytes, c.outputs[0], c.inputs[0]); });
}

std::vector<Sample> transpose_samples() {
  using Ints = std::vector<int64_t>;
  struct Case {
    TensorType x;
    Ints permutation;
  };
  const DataType type = DataType::Float32;
  std::vector<Sample> samples;
  for (const Case& c : {Case{{type, {}}, {}},
                        {{type, {7}}, {0}},
                        {{type, {5, 7}}, {}},
                        {{type, {40, 33}}, {1, 0}},
                        {{type, {2, 3, 5}}, {0, 2, 1}},
                        {{type, {2, 7, 4, 16}}, {0, 2, 1, 3}},
                        {{type, {2, 3, 5, 7}}, {0, 2, 3, 1}},
                        {{type, {2, 1, 5, 1}}, {3, 1, 2, 0}},
                        {TensorType{type, {2, 3, 5, 7}}.in(Layout::ChannelsLast), {0, 2, 3, 1}},
                        {TensorType{type, {2, 8, 5, 4}}.in(Layout::ChannelsLast), {0, 1, 2, 3}},
                        {{type, {2, 5, 7, 3}}, {0, 3, 1, 2}},
                        {{type, {2, 5, 3}}, {0, 2, 1}},
                        {{type, {2, 3, 2, 3, 2, 3}}, {5, 0, 3, 2, 4, 1}},
                        {{type, {2, 70, 132}}, {0, 2, 1}},
                        {{type, {2, 66, 3, 70}}, {0, 3, 2, 1}},
                        {{type, {18, 3, 97}}, {1, 2, 0}},
                        {{type, {3, 49, 4, 49}}, {0, 1, 3, 2}},
                        {{type, {2, 5, 3, 197}}, {1, 0, 3, 2}},
                        {{type, {2, 197, 3, 6}}, {0, 2, 3, 1}},
                        {{type, {2, 196, 136}}, {0, 2, 1}},
                        {{type, {72, 3, 200}}, {1, 2, 0}},
                        {{DataType::Bool, {5, 7}}, {1, 0}},
                        {{DataType::Uint8, {2, 80, 144}}, {0, 2, 1}},
                        {{DataType::Uint8, {2, 40, 200}}, {0, 2, 1}},
                        {{DataType::Int64, {34, 70}}, {1, 0}},
                        {{DataType::Uint8, {3, 31, 31, 3}}, {0, 3, 1, 2}},
                        {{DataType::Int64, {3, 4, 197}}, {0, 2, 1}},
                        {{DataType::Uint8, {2, 3, 5}}, {0, 2, 1}},
                        {{DataType::Int32, {3, 4, 5}}, {2, 0, 1}},
                        {{DataType::Int64, {4, 2}}, {}}}) {
    samples.push_back({.name = std::string(name_of(c.x.dtype)) + " " + to_string(c.x.shape) + " by " +
                               to_string(c.permutation, '[', ']') +
                               (c.x.layout == Layout::ChannelsLast ? ", channels-last" : ""),
                       .inputs = {{c.x, 0, is_floating(c.x.dtype) || c.x.dtype == DataType::Bool ? 1.0 : 100.0}},
                       .attributes = c.permutation.empty() ? Attributes{} : Attributes{{"perm", c.permutation}},
                       .tolerance = 0});
  }
  return samples;
}

std::vector<Sample> in_place_samples() {
  std::vector<Sample> all;
  for (Sample& sample : transpose_samples()) {
    const bool last = sample.inputs[0].type.layout == Layout::ChannelsLast;
    const Attribute* permutation = sample.attributes.find("perm");
    if (permutation &&
        *permutation == Attribute(last ? std::vector<int64_t>{0, 2, 3, 1} : std::vector<int64_t>{0, 3, 1, 2})) {
      all.push_back(std::move(sample));
    }
  }
  return all;
}

}  // namespace

void register_shape_transpose(OpRegistry& registry) {
  registry.add({.domain = "",
                .name = "Transpose",
                .doc = "X with its axes in the order `perm`",
                .inputs = {{.name = "X", .lowered = true}},
                .outputs = {{.name = "Y", .lowered = true}},
                .attributes = {ints_spec("perm", {}, "axis i of Y is axis perm[i] of X; default: the axes reversed")},
                .layout = std::nullopt,
                .infer = infer_transpose,
                .grad = grad_transpose,
                .cost = elementwise_cost(0),
                .samples = transpose_samples,
                .cpu = transpose_cpu,
                .arithmetic = Arithmetic::Keeps});
  registry.add({.domain = "arbalest",
                .name = "TransposeInPlace",
                .doc = "Transpose of an image to (N, …, C) or back, whose elements stay where they are in memory",
                .inputs = {{.name = "X", .lowered = true}},
                .outputs = {{.name = "Y", .lowered = true}},
                .attributes = {required_spec("perm", AttributeKind::Ints, "as Transpose's")},
                .internal = true,
                .layout = std::nullopt,
                .infer = infer_in_place,
                .grad = grad_transpose,
                .cost = elementwise_cost(0),
                .samples = in_place_samples,
                .aliases = {{0, 0}},
                .cpu = registry.get("Reshape").cpu});  // nothing, or if memory is not shared a copy
}

}  // namespace arbalest
