// SPDX-License-Identifier: Apache-2.0

// GlobalAveragePool and its gradient.

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/nn/pool.h"

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

std::unique_ptr<Kernel> global_grad_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using W = Wide<T>;
  const Shape shape = request.outputs[0].shape;
  const int64_t batch = shape[0], channels = shape[1], pixels = pixel_count(pixels_of(shape));
  return make_kernel([=](const KernelContext& context) {
    const T* dy = input<T>(context, 0);
    T* dx = output<T>(context, 0);
    const W scale = W(1) / W(pixels);
    parallel_for(batch, pixels * channels, [=](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const T* from = dy + n * channels;
        for (int64_t p = 0; p < pixels; ++p) {
          T* to = dx + (n * pixels + p) * channels;
          for (int64_t c = 0; c < channels; ++c) to[c] = narrow<T>(widen(from[c]) * scale);
        }
      }
    });
  });
}

void infer_global_grad(InferContext& context) {
  const TensorType& x = floating_input(context, 1, {3, 4, 5});
  expect_input(context, 0, {x.dtype, global_pool_shape(x.shape)}, "the type of GlobalAveragePool's output");
  context.set_output(0, x);
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

std::vector<Sample> global_grad_samples() {
  std::vector<Sample> samples;
  for (const Shape& shape : global_shapes()) {
    samples.push_back({.name = to_string(shape),
                       .inputs = {{{DataType::Float32, global_pool_shape(shape)}}, {{DataType::Float32, shape}}}});
  }
  return samples;
}

}  // namespace

void register_nn_global_average_pool(OpRegistry& registry) {
  registry.add({.domain = "",
                .name = "GlobalAveragePool",
                .doc = "the mean of each channel's pixels, as (N, C, 1, …)",
                .inputs = {{.name = "X", .lowered = true}},
                .outputs = {{.name = "Y", .lowered = true}},
                .layout = Layout::ChannelsLast,
                .infer = infer_global_pool,
                .grad =
                    [](GradContext& c) {
                      if (!c.needs_gradient(0)) return;
                      c.set_input_gradient(0, c.add("arbalest.GlobalAveragePoolGrad", "grad_input",
                                                    {c.output_gradient(0), c.input(0)}, 1)[0]);
                    },
                .cost = pool_cost,
                .samples = global_samples,
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return global_cpu(r, t); })});
  registry.add({.domain = "arbalest",
                .name = "GlobalAveragePoolGrad",
                .doc = "dY / pixels at every pixel, in the shape of X; X is not read",
                .inputs = {{.name = "dY", .lowered = true}, {.name = "X", .lowered = true}},
                .outputs = {{.name = "dX", .lowered = true}},
                .internal = true,
                .layout = Layout::ChannelsLast,
                .infer = infer_global_grad,
                .cost = elementwise_cost(1),
                .samples = global_grad_samples,
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return global_grad_cpu(r, t); })});
}

}  // namespace arbalest
