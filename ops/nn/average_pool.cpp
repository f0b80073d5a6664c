// SPDX-License-Identifier: Apache-2.0

// AveragePool and its gradient.

#include "ops/definition.h"
#include "ops/names.h"
#include "ops/nn/pool.h"
#include "ops/nn/window_cpu.h"

namespace arbalest {
namespace {

struct AveragePool : SlidingWindow {
  int64_t batch, channels;
  std::vector<double> shares;  // of each element of the window at an output pixel: 1 / the elements that count

  AveragePool(const Node& node, const Shape& x, const Shape& y)
      : SlidingWindow{pixels_of(x), pixels_of(y), window_of(node, x)}, batch(x[0]), channels(x[1]) {
    const bool count_pads = int_attribute(node, "count_include_pad") != 0;
    Pixels at;
    for (at[0] = 0; at[0] < out[0]; ++at[0]) {
      for (at[1] = 0; at[1] < out[1]; ++at[1]) {
        for (at[2] = 0; at[2] < out[2]; ++at[2]) {
          int64_t count = 1;
          for (int axis = 0; axis < 3; ++axis) {
            const int64_t begin = at[axis] * window.stride[axis] - window.pad_begin[axis];
            const int64_t low = count_pads ? -window.pad_begin[axis] : 0;
            const int64_t high = in[axis] + (count_pads ? window.pad_end[axis] : 0);
            count *= elements_between(begin, window.dilation[axis], window.kernel[axis], low, high);
          }
          shares.push_back(1 / double(std::max<int64_t>(count, 1)));
        }
      }
    }
  }
};

constexpr int64_t kAverageBlock = 64;  // channels whose sums are kept near

std::unique_ptr<Kernel> average_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  const AveragePool pool(request.node, request.inputs[0].shape, request.outputs[0].shape);
  return make_kernel([pool](const KernelContext& context) {
    const T* x = input<T>(context, 0);
    T* y = output<T>(context, 0);
    const int64_t channels = pool.channels;
    for_each_row(pool.batch, pool.out, channels * pool.taps(), [=, &pool](int64_t n, Pixels at, int64_t first) {
      const T* image = x + n * pixel_count(pool.in) * channels;
      const double* shares = pool.shares.data() + (at[0] * pool.out[1] + at[1]) * pool.out[2];
      for (at[2] = 0; at[2] < pool.out[2]; ++at[2]) {
        const auto share = Wide<T>(shares[at[2]]);
        for (int64_t c = 0; c < channels; c += kAverageBlock) {
          const int64_t count = std::min(kAverageBlock, channels - c);
          Wide<T> sums[kAverageBlock] = {};
          pool.for_each_input(at, [&](int64_t, int64_t pixel) {
            const T* from = image + pixel * channels + c;
            for (int64_t i = 0; i < count; ++i) sums[i] += widen(from[i]);
          });
          T* to = y + (first + at[2]) * channels + c;
          for (int64_t i = 0; i < count; ++i) to[i] = narrow<T>(sums[i] * share);
        }
      }
    });
  });
}

std::unique_ptr<Kernel> average_grad_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using In = GradByInput;
  const AveragePool pool(request.node, request.inputs[In::X].shape, request.inputs[In::dY].shape);
  return make_kernel([pool](const KernelContext& context) {
    const T* dy = input<T>(context, In::dY);
    T* dx = output<T>(context, 0);
    const int64_t channels = pool.channels;
    for_each_row(pool.batch, pool.in, channels * pool.taps(), [=, &pool](int64_t n, Pixels at, int64_t first) {
      const T* gradients = dy + n * pixel_count(pool.out) * channels;
      for (at[2] = 0; at[2] < pool.in[2]; ++at[2]) {
        for (int64_t c = 0; c < channels; c += kAverageBlock) {
          const int64_t count = std::min(kAverageBlock, channels - c);
          Wide<T> sums[kAverageBlock] = {};
          pool.for_each_output(at, [&](int64_t, int64_t pixel) {
            const T* from = gradients + pixel * channels + c;
            const auto share = Wide<T>(pool.shares[size_t(pixel)]);
            for (int64_t i = 0; i < count; ++i) sums[i] += widen(from[i]) * share;
          });
          T* to = dx + (first + at[2]) * channels + c;
          for (int64_t i = 0; i < count; ++i) to[i] = narrow<T>(sums[i]);
        }
      }
    });
  });
}

TensorType averaged_type(const Node& node, const TensorType& x) {
  const Window window = window_of(node, x.shape);
  flag_attribute(node, "count_include_pad");
  const bool ceil_mode = flag_attribute(node, "ceil_mode");
  check_fits(node, window, x, ceil_mode);
  return {x.dtype, windowed_shape(window, x.shape, x.shape[1], ceil_mode)};
}

void infer_average_grad(InferContext& context) {
  const TensorType& x = floating_input(context, GradByInput::X, {3, 4, 5});
  expect_input(context, GradByInput::dY, averaged_type(context.node(), x), "the type of AveragePool's output");
  context.set_output(0, x);
}

struct AverageCase {
  PoolCase pool;
  int64_t count_pads;

  Sample sample(std::vector<Sample::Input> inputs) const {
    Sample sample{.name = pool.name, .inputs = std::move(inputs), .attributes = pool.attributes()};
    sample.attributes.set("count_include_pad", count_pads);
    return sample;
  }
};
const std::vector<AverageCase>& average_cases() {
  static const std::vector<AverageCase> cases = {{{"halving", {2, 8, 8, 8}, 2, 2, 0, 0, 1, 0}, 0},
                                                 {{"one pixel", {1, 1, 1, 1}, 1, 1, 0, 0, 1, 0}, 0},
                                                 {{"padded", {2, 5, 7, 9}, 3, 2, 1, 1, 1, 0}, 0},
                                                 {{"pads count", {2, 5, 7, 9}, 3, 2, 1, 1, 1, 0}, 1},
                                                 {{"uneven pads", {1, 4, 6, 5}, 3, 1, 0, 2, 1, 0}, 1},
                                                 {{"ceil", {2, 4, 6, 7}, 3, 2, 0, 0, 1, 1}, 0},
                                                 {{"ceil, pads count", {1, 3, 6, 6}, 3, 2, 1, 1, 1, 1}, 1},
                                                 {{"ceil, too large", {2, 3, 2, 5}, 3, 2, 0, 0, 1, 1}, 1},
                                                 {{"dilated", {1, 3, 9, 8}, 2, 2, 1, 1, 2, 0}, 0},
                                                 {{"same upper", {2, 4, 8, 7}, 3, 2, 0, 0, 1, 0, "SAME_UPPER"}, 0},
                                                 {{"same lower", {1, 3, 6, 7}, 2, 1, 0, 0, 1, 0, "SAME_LOWER"}, 1},
                                                 {{"sequence", {2, 5, 9}, 3, 2, 1, 1, 1, 1}, 0},
                                                 {{"volume", {2, 3, 5, 4, 6}, 3, 2, 1, 1, 1, 0}, 1},
                                                 {{"many channels", {2, 130, 4, 4}, 2, 2, 0, 0, 1, 0}, 0}};
  return cases;
}

std::vector<Sample> average_samples() {
  std::vector<Sample> samples;
  for (const AverageCase& c : average_cases()) samples.push_back(c.sample({{{DataType::Float32, c.pool.shape}}}));
  return samples;
}

std::vector<Sample> average_grad_samples() {
  std::vector<Sample> samples;
  for (const AverageCase& c : average_cases()) {
    samples.push_back(c.sample({{{DataType::Float32, c.pool.pooled()}}, {{DataType::Float32, c.pool.shape}}}));
  }
  return samples;
}

std::vector<AttributeSpec> average_specs() {
  return pool_specs(int_spec("count_include_pad", 0, "1: the mean is over padding too, as zeros"));
}

}  // namespace

void register_nn_average_pool(OpRegistry& registry) {
  registry.add({.domain = "",
                .name = "AveragePool",
                .doc = "the mean of each window",
                .inputs = {{.name = "X", .lowered = true}},
                .outputs = {{.name = "Y", .lowered = true}},
                .attributes = average_specs(),
                .layout = Layout::ChannelsLast,
                .infer =
                    [](InferContext& c) {
                      c.set_output(0, averaged_type(c.node(), floating_input(c, 0, {3, 4, 5})));
                    },
                .grad =
                    [](GradContext& c) {
                      c.add_input_gradient("arbalest.AveragePoolGrad", {c.input(0)},
                                           window_attributes(c.node(), {"ceil_mode", "count_include_pad"}));
                    },
                .cost = pool_cost,
                .samples = average_samples,
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return average_cpu(r, t); })});
  registry.add({.domain = "arbalest",
                .name = "AveragePoolGrad",
                .doc = "the gradient of AveragePool's X; X is not read",
                .inputs = {{.name = "dY", .lowered = true}, {.name = "X", .lowered = true}},
                .outputs = {{.name = "dX", .lowered = true}},
                .attributes = average_specs(),
                .internal = true,
                .layout = Layout::ChannelsLast,
                .infer = infer_average_grad,
                .cost = elementwise_cost(1),
                .samples = average_grad_samples,
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return average_grad_cpu(r, t); })});
}

}  // namespace arbalest
