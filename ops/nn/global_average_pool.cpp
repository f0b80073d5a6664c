// SPDX-License-Identifier: Apache-2.0

// GlobalAveragePool, whose gradient is that of a mean.

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/nn/pool.h"
#include "ops/reduce/reduce.h"

namespace arbalest {
namespace {

std::unique_ptr<Kernel> global_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using W = Wide<T>;
  const Shape shape = request.inputs[0].shape;
  const int64_t batch = shape[0], channels = shape[1], pixels = pixel_count(pixels_of(shape));
  return make_kernel(
      [=](const KernelContext& context) {
        const T* x = input<T>(context, 0);
        T* y = output<T>(context, 0);
        W* sums = static_cast<W*>(context.workspace);
        parallel_for(batch, pixels * channels, [=](int64_t begin, int64_t end) {
          for (int64_t n = begin; n < end; ++n) {
            W* sum = sums + n * channels;
            std::fill(sum, sum + channels, W(0));
            for (int64_t p = 0; p < pixels; ++p) {
              const T* from = x + (n * pixels + p) * channels;
              for (int64_t c = 0; c < channels; ++c) sum[c] += widen(from[c]);
            }
            for (int64_t c = 0; c < channels; ++c) y[n * channels + c] = narrow<T>(sum[c] / W(pixels));
          }
        });
      },
      batch * channels * int64_t(sizeof(W)));
}

std::vector<Shape> global_shapes() {
  return {{1, 1, 1, 1}, {2, 3, 5, 7}, {1, 13, 4, 4}, {3, 5, 6}, {2, 4, 3, 2, 5}, {16, 64, 8, 8}};
}

std::vector<Sample> global_samples() {
  std::vector<Sample> samples;
  for (const Shape& shape : global_shapes()) {
    samples.push_back({.name = to_string(shape), .inputs = {{{DataType::Float32, shape}}}});
  }
  return samples;
}

}  // namespace

void register_nn_global_average_pool(OpRegistry& registry) {
  registry.add(
      {.domain = "",
       .name = "GlobalAveragePool",
       .doc = "the mean of each channel's pixels, as (N, C, 1, …)",
       .inputs = {{.name = "X", .lowered = true}},
       .outputs = {{.name = "Y", .lowered = true}},
       .layout = Layout::ChannelsLast,
       .infer = infer_global_pool,
       .grad =
           [](GradContext& c) {
             const TensorType x = c.type(c.input(0));
             std::vector<bool> pixels(x.shape.size(), true);
             pixels[0] = pixels[1] = false;
             c.add_input_gradient("arbalest.ReduceMeanGrad", {}, reduce_gradient_attributes({pixels, true}, x));
           },
       .cost = pool_cost,
       .samples = global_samples,
       .cpu = floating_kernel([](const KernelRequest& r, auto t) { return global_cpu(r, t); }),
       .sum =
           [](const Node&, const TensorType& x, const TensorType& y) {
             return AxisSum{broadcast_strides(y, x.shape.size()), double(y.elements()) / double(x.elements())};
           }});
}

}  // namespace arbalest
