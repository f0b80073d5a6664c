// SPDX-License-Identifier: Apache-2.0

// TopK: the greatest or the least elements along an axis, in their order, and where they are.

#include "ops/indexing/top_k.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/math/strided.h"
#include "ops/shape/copy.h"

namespace arbalest {
namespace {

// Up to opset 9 it was an attribute `k`.
int64_t top_k_count(const InferContext& context) {
  if (!context.states("K") && context.states("k")) return int_attribute(context.node(), "k");
  const std::vector<int64_t> list = context.ints("K");
  if (list.size() != 1) context.fail(fmt::format("'K' is {}; expected one number", to_string(list, '[', ']')));
  return list[0];
}

void infer_top_k(InferContext& context) {
  TensorType y = number_input(context, 0);
  const size_t axis = axis_of(context);
  flag_attribute(context.node(), "largest");
  flag_attribute(context.node(), "sorted");
  const int64_t k = top_k_count(context);
  if (k < 0 || k > y.shape[axis]) {
    context.fail(fmt::format("'K' is {}; expected 0 to {}, the extent of {}, {}, along axis {}", k, y.shape[axis],
                             input_name(context, 0), to_string(context.input(0)), axis));
  }
  y.shape[axis] = k;
  context.set_output(TopKOutput::Values, y);
  y.dtype = DataType::Int64;
  context.set_output(TopKOutput::Indices, y);
}

// The gradient goes to the elements that the values came from.
void grad_top_k(GradContext& c) {
  if (!c.needs_gradient(0) || c.output_gradient(0) == kNone) return;
  const Node node = c.node();
  ValueId indices = c.output(TopKOutput::Indices);
  if (indices == kNone) indices = c.add("TopK", "indices", {c.input(0)}, 2, node.attributes)[1];
  c.set_input_gradient(0, c.add("arbalest.GatherElementsGrad", "grad_input", {c.output_gradient(0), indices}, 1,
                                {{"axis", int_attribute(node, "axis")}, {"shape", c.type(c.input(0)).shape}})[0]);
}

template <typename T>
std::unique_ptr<Kernel> top_k_kernel(const KernelRequest& request) {
  using Out = TopKOutput;
  const TensorType& x = request.inputs[0];
  const int64_t axis = int_attribute(request.node, "axis");
  const size_t place = axis_of(request.node, x.shape.size());
  const bool has_values = request.has_output(Out::Values), has_indices = request.has_output(Out::Indices);
  const TensorType& y = request.outputs[has_values ? 0 : 1];
  const AxisVectors from(x, axis), to(y, axis);
  const TopKOrder order{flag_attribute(request.node, "largest")};
  const auto run = [=, k = y.shape[place]](const KernelContext& c) {
    if (k == 0) return;
    const T* x = input<T>(c, 0);
    parallel_for(from.count, from.length * 8, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const T* vector = x + from.first(i);
        int64_t* sorted = static_cast<int64_t*>(c.workspace) + i * from.length;
        std::iota(sorted, sorted + from.length, int64_t{0});
        std::partial_sort(sorted, sorted + k, sorted + from.length, [&](int64_t a, int64_t b) {
          return order.before(widen(vector[a * from.step]), a, widen(vector[b * from.step]), b);
        });
        for (int64_t j = 0; j < k; ++j) {
          const int64_t at = to.first(i) + j * to.step;
          if (has_values) output<T>(c, Out::Values)[at] = vector[sorted[j] * from.step];
          if (has_indices) output<int64_t>(c, Out::Indices)[at] = sorted[j];
        }
      }
    });
  };
  return make_kernel(run, x.elements() * int64_t(sizeof(int64_t)));
}

std::vector<Sample> top_k_samples() {
  struct Case {
    TensorType x;
    int64_t axis, k;
    bool largest = true;
  };
  const auto floats = [](Shape shape) { return TensorType{DataType::Float32, std::move(shape)}; };
  std::vector<Sample> samples;
  for (const Case& c :
       {Case{floats({7}), 0, 3}, Case{floats({5, 70}), -1, 70, false}, Case{floats({40, 33}), 0, 5},
        Case{floats({2, 9, 5, 4}), 1, 2, false}, Case{floats({3, 1}), 1, 1}, Case{floats({3, 1000}), 1, 17},
        Case{floats({4, 3}), 1, 0}, Case{floats({0, 3}), 1, 2}, Case{{DataType::Int32, {6, 40}}, 1, 4},
        Case{{DataType::Int64, {6, 40}}, 0, 6, false}, Case{{DataType::Uint8, {300}}, 0, 9}}) {
    for (const int outputs : {1, 2}) {
      const bool floating = is_floating(c.x.dtype);  // whole numbers: some are equal
      samples.push_back(
          {.name = fmt::format("{} {} of {}, axis {}, {} outputs", c.k, c.largest ? "largest" : "smallest",
                               to_string(c.x), c.axis, outputs),
           .inputs = {{.type = c.x, .low = 0, .high = floating ? 1.0 : 9.0, .distinct = floating}},
           .output_count = outputs,
           .attributes = {{"K", std::vector<int64_t>{c.k}}, {"axis", c.axis}, {"largest", int64_t(c.largest)}},
           .tolerance = 0});
    }
  }
  samples.push_back({.name = "equal ones",
                     .inputs = {{.type = floats({3, 50}), .low = 2, .high = 2, .differentiable = false}},
                     .output_count = 2,
                     .attributes = {{"K", std::vector<int64_t>{5}}},
                     .tolerance = 0});
  return samples;
}

}  // namespace

void register_indexing_top_k(OpRegistry& registry) {
  registry.add(
      {.domain = "",
       .name = "TopK",
       .doc =
           "the K greatest or least elements along `axis` in their order, and their indices; of equal ones the first, "
           "and a NaN is the greatest",
       .inputs = {{.name = "X", .lowered = true}, {.name = "K", .arity = OperandSpec::Optional, .constant = true}},
       .outputs = {{.name = "Values", .lowered = true}, {.name = "Indices", .arity = OperandSpec::Optional}},
       .attributes = {ints_spec("K", {}, "how many, one number"), int_spec("axis", -1, "negative counts from the end"),
                      int_spec("largest", 1, "1: the greatest, 0: the least"),
                      int_spec("sorted", 1, "not read: they are always in their order"),
                      int_spec("k", 0, "older opsets' K")},
       .infer = infer_top_k,
       .grad = grad_top_k,
       .cost =
           [](const Graph& graph, const Node& node) {
             return Cost{double(input_type(graph, node, 0).elements()), operand_bytes(graph, node)};
           },
       .samples = top_k_samples,
       .cpu = [](const KernelRequest& request) -> std::unique_ptr<Kernel> {
         return dispatch_element(request.inputs[0].dtype,
                                 [&](auto element) { return top_k_kernel<decltype(element)>(request); });
       }});
}

}  // namespace arbalest
