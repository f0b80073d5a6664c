// SumTo: the gradient of broadcasting, a sum over the axes along which an operand was broadcast.

#include <fmt/format.h>

#include "ops/math/elementwise.h"
#include "ops/math/elementwise_cpu.h"
#include "ops/math/sum_axes.h"

namespace arbalest {
namespace {

void infer_sum_to(InferContext& context) {
  const TensorType &x = floating_input(context, 0), &like = context.input(1);
  if (elementwise::broadcast_shape(context, 0, 1) != x.shape) {
    context.fail(
        fmt::format("input 'like' is {}; expected a shape that broadcasts to 'X', {}", to_string(like), to_string(x)));
  }
  TensorType sum = like;
  sum.dtype = master_type(x.dtype);
  context.set_output(0, sum);
}

// Neighbouring outputs that one thread sums side by side, where the innermost axis is kept.
constexpr int64_t kColumns = 64;

// The sums of `columns` neighbouring outputs from x + offset(kept axes); in double, always in the same order.
template <typename T>
void sum_columns(const SumAxes& axes, int64_t columns, const T* x, double* sums) {
  std::fill(sums, sums + columns, 0.0);
  for (int64_t r = 0; r < axes.reduced.count; ++r) {
    const T* from = x + axes.reduced.offset(r, 0);
    for (int64_t c = 0; c < columns; ++c) sums[c] += double(widen(from[c]));
  }
}

// Outputs: of the kept axes but the innermost, times those of the innermost axis in blocks of kColumns, where it is
// kept.
template <typename T>
void sum_to(const SumAxes& axes, const T* x, Wide<T>* sums) {
  const int64_t blocks = (axes.inner + kColumns - 1) / kColumns;
  parallel_for(axes.kept.count * blocks, axes.reduced.count * std::min(axes.inner, kColumns),
               [=, &axes](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   const int64_t kept = i / blocks, first = i % blocks * kColumns;
                   const int64_t columns = std::min(kColumns, axes.inner - first);
                   double totals[kColumns];
                   sum_columns(axes, columns, x + axes.kept.offset(kept, 0) + first, totals);
                   Wide<T>* to = sums + axes.kept.offset(kept, 1) + first * axes.inner_stride;
                   for (int64_t c = 0; c < columns; ++c) to[c * axes.inner_stride] = Wide<T>(totals[c]);
                 }
               });
}

std::unique_ptr<Kernel> sum_to_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  return make_kernel([axes = SumAxes(Strided({request.inputs[0], request.outputs[0]}))](const KernelContext& context) {
    sum_to<T>(axes, input<T>(context, 0), output<Wide<T>>(context, 0));
  });
}

std::vector<Sample> samples() {
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
                        {{40, 30, 50}, {1}}}) {
    samples.push_back({.name = to_string(c.x) + " to " + to_string(c.like),
                       .inputs = {{{DataType::Float32, c.x}}, {{DataType::Float32, c.like}}},
                       .tolerance = 1e-5});
  }
  samples.push_back({.name = "large mean",
                     .inputs = {{{DataType::Float32, {16, 8, 16, 16}}, 99, 101}, {{DataType::Float32, {8, 1, 1}}}}});
  return samples;
}

}  // namespace

void register_math_sum_to(OpRegistry& registry) {
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
                .samples = samples,
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return sum_to_cpu(r, t); })});
}

}  // namespace arbalest
