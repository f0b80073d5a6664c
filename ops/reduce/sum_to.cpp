// SPDX-License-Identifier: Apache-2.0

// SumTo: the gradient of broadcasting, a sum over the axes along which an operand was broadcast.

#include <fmt/format.h>

#include "ops/math/elementwise.h"
#include "ops/reduce/reduce_cpu.h"

namespace arbalest {
namespace {

struct SumToInput {
  enum : size_t { X, Like };
};

void infer_sum_to(InferContext& context) {
  const TensorType &x = floating_input(context, SumToInput::X), &like = context.input(SumToInput::Like);
  if (elementwise::broadcast_shape(context, 0, 1) != x.shape) {
    context.fail(
        fmt::format("input 'like' is {}; expected a shape that broadcasts to 'X', {}", to_string(like), to_string(x)));
  }
  TensorType sum = like;
  sum.dtype = master_type(x.dtype);
  context.set_output(0, sum);
}

std::unique_ptr<Kernel> sum_to_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  return make_kernel([axes = SumAxes(Strided({request.inputs[0], request.outputs[0]}))](const KernelContext& context) {
    reduce<reductions::ReduceSum, T, Wide<T>>(axes, input<T>(context, 0), nullptr, output<Wide<T>>(context, 0));
  });
}

std::vector<Sample> sum_to_samples() {
  struct Case {
    Shape x, like;
  };
  std::vector<Sample> samples;
  for (const Case& c : {Case{{3, 5}, {3, 5}},
                        {{3, 5}, {}},
                        {{300, 7}, {7}},
                        {{64, 40}, {1, 40}},
                        {{9, 130}, {9, 1}},
                        {{700, 3}, {700, 1}},
                        {{1, 3, 5}, {3, 5}},
                        {{8, 16, 9, 7}, {16, 1, 1}},
                        {{8, 16, 9, 7}, {8, 16, 1, 1}},
                        {{8, 16, 9, 7}, {9, 1}},
                        {{3, 5, 9, 7}, {3, 1, 9, 1}},
                        {{2, 5, 3, 2, 2, 4}, {2, 1, 3, 1, 2, 1}},
                        {{32, 8, 24, 24}, {8, 1, 1}},
                        {{40, 30, 50}, {1}},
                        {{400, 3, 64, 8}, {3, 1, 1}},
                        {{5000, 2, 33}, {2, 1}}}) {
    samples.push_back({.name = to_string(c.x) + " to " + to_string(c.like),
                       .inputs = {{{DataType::Float32, c.x}}, {{DataType::Float32, c.like}}},
                       .tolerance = 1e-5});
  }
  samples.push_back({.name = "large mean",
                     .inputs = {{{DataType::Float32, {16, 8, 16, 16}}, 99, 101}, {{DataType::Float32, {8, 1, 1}}}}});
  return samples;
}

}  // namespace

void register_reduce_sum_to(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "SumTo",
                .doc = "the sum of X over the axes along which `like` is broadcast to it; `like` is not read",
                .inputs = {{.name = "X", .lowered = true}, {.name = "like", .lowered = true}},
                .outputs = {{.name = "S"}},
                .internal = true,
                .layout = std::nullopt,
                .infer = infer_sum_to,
                .cost =
                    [](const Graph& graph, const Node& node) {
                      return Cost{double(input_type(graph, node, 0).elements()), operand_bytes(graph, node)};
                    },
                .samples = sum_to_samples,
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return sum_to_cpu(r, t); }),
                .sum = [](const Node&, const TensorType& x,
                          const TensorType& y) { return AxisSum{broadcast_strides(y, x.shape.size())}; }});
}

}  // namespace arbalest
