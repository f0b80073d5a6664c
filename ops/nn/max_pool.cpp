// SPDX-License-Identifier: Apache-2.0

// MaxPool and its gradient, which finds the maximum again: the first one in the window's row-major order. For training,
// keep_maxima() in passes/passes.h turns them into MaxPoolTaps, which keeps the place of each maximum, and its
// gradient. GlobalMaxPool is a MaxPool of one window.

#include "ops/nn/max_pool.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "ops/definition.h"
#include "ops/nn/pool.h"
#include "ops/nn/window_cpu.h"

namespace arbalest {
namespace {

struct MaxPool : SlidingWindow {
  int64_t batch, channels;

  MaxPool(const Node& node, const Shape& x, const Shape& y)
      : SlidingWindow{pixels_of(x), pixels_of(y), window_of(node, x)}, batch(x[0]), channels(x[1]) {}

  int64_t image() const { return pixel_count(in) * channels; }  // elements
  int64_t out_image() const { return pixel_count(out) * channels; }
};

// Channels are taken in blocks, whose running maxima stay in registers or the nearest cache.
constexpr int64_t kMaxBlock = 64;

template <typename T>
void pool_block(const MaxPool& pool, const T* x, const Pixels& at, int64_t count, T* y) {
  using W = Wide<T>;
  W best[kMaxBlock];
  std::fill(best, best + count, -std::numeric_limits<W>::infinity());
  pool.for_each_input(at, [&](int64_t, int64_t pixel) {
    const T* from = x + pixel * pool.channels;
    for (int64_t c = 0; c < count; ++c) {
      const W value = widen(from[c]);
      // A NaN wins and stays, as in PyTorch.
      best[c] = value > best[c] || value != value ? value : best[c];
    }
  });
  for (int64_t c = 0; c < count; ++c) y[c] = narrow<T>(best[c]);
}

// The same, and in `indices` the pixel of each maximum.
template <typename T>
void pool_block_indexed(const MaxPool& pool, const T* x, const Pixels& at, int64_t count, T* y, int64_t* indices) {
  std::fill(indices, indices + count, -1);
  pool.for_each_input(at, [&](int64_t, int64_t pixel) {
    const T* from = x + pixel * pool.channels;
    for (int64_t c = 0; c < count; ++c) {
      const Wide<T> value = widen(from[c]);
      if (indices[c] >= 0 && !(value > widen(y[c])) && value == value) continue;
      y[c] = from[c];
      indices[c] = pixel;
    }
  });
}

// The same, and in `taps` the element of the window that each maximum is. A NaN is one, the first of them.
template <typename T>
void pool_block_taps(const MaxPool& pool, const T* x, const Pixels& at, int64_t count, T* y, uint8_t* taps) {
  using W = Wide<T>;
  W best[kMaxBlock];
  int32_t places[kMaxBlock];
  bool first = true;
  std::fill(best, best + count, -std::numeric_limits<W>::infinity());  // of a dilated window that misses the image
  std::fill(places, places + count, 0);
  pool.for_each_input(at, [&](int64_t tap, int64_t pixel) {
    const T* from = x + pixel * pool.channels;
    for (int64_t c = 0; c < count; ++c) {
      const W value = widen(from[c]);
      const bool greater = first || (!(value <= best[c]) && best[c] == best[c]);
      best[c] = greater ? value : best[c];
      places[c] = greater ? int32_t(tap) : places[c];
    }
    first = false;
  });
  for (int64_t c = 0; c < count; ++c) y[c] = narrow<T>(best[c]), taps[c] = uint8_t(places[c]);
}

// Maps pixels of an image to elements of the whole of X: row-major, or with the first spatial axis innermost.
struct IndexOrder {
  Pixels in;
  bool columns_first;

  int64_t pixel(int64_t at) const {
    const int64_t d = at / (in[1] * in[2]), h = at / in[2] % in[1], w = at % in[2];
    return columns_first ? d + in[0] * (h + in[1] * w) : at;
  }
};

std::unique_ptr<Kernel> taps_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using Out = MaxPoolTapsOutput;
  const MaxPool pool(request.node, request.inputs[0].shape, request.outputs[Out::Y].shape);
  return make_kernel([=](const KernelContext& context) {
    const T* x = input<T>(context, 0);
    T* y = output<T>(context, Out::Y);
    uint8_t* taps = output<uint8_t>(context, Out::Taps);
    for_each_row(pool.batch, pool.out, pool.channels * pool.taps(), [=, &pool](int64_t n, Pixels at, int64_t first) {
      const T* image = x + n * pool.image();
      for (at[2] = 0; at[2] < pool.out[2]; ++at[2]) {
        const int64_t to = (first + at[2]) * pool.channels;
        for (int64_t c = 0; c < pool.channels; c += kMaxBlock) {
          pool_block_taps(pool, image + c, at, std::min(kMaxBlock, pool.channels - c), y + to + c, taps + to + c);
        }
      }
    });
  });
}

std::unique_ptr<Kernel> max_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using Out = MaxPoolOutput;
  const MaxPool pool(request.node, request.inputs[0].shape, request.outputs[Out::Y].shape);
  const bool indexed = request.has_output(Out::Indices);
  const IndexOrder order{pool.in, int_attribute(request.node, "storage_order") != 0};
  return make_kernel([=](const KernelContext& context) {
    const T* x = input<T>(context, 0);
    T* y = output<T>(context, Out::Y);
    int64_t* indices = indexed ? output<int64_t>(context, Out::Indices) : nullptr;
    for_each_row(pool.batch, pool.out, pool.channels * pool.taps(), [=, &pool](int64_t n, Pixels at, int64_t first) {
      const T* image = x + n * pool.image();
      for (at[2] = 0; at[2] < pool.out[2]; ++at[2]) {
        const int64_t to = (first + at[2]) * pool.channels;
        for (int64_t c = 0; c < pool.channels; c += kMaxBlock) {
          const int64_t count = std::min(kMaxBlock, pool.channels - c);
          if (!indexed) {
            pool_block(pool, image + c, at, count, y + to + c);
            continue;
          }
          pool_block_indexed(pool, image + c, at, count, y + to + c, indices + to + c);
          for (int64_t i = c; i < c + count; ++i) {
            indices[to + i] = (n * pool.channels + i) * pixel_count(pool.in) + order.pixel(indices[to + i]);
          }
        }
      }
    });
  });
}

// Adds one window's gradient to the first maximum of each channel.
template <typename T>
void grad_block(const MaxPool& pool, const T* dy, const T* x, const T* y, const Pixels& at, int64_t count,
                Wide<T>* dx) {
  using W = Wide<T>;
  W open[kMaxBlock], best[kMaxBlock];  // the gradient, until it is given away
  for (int64_t c = 0; c < count; ++c) open[c] = widen(dy[c]), best[c] = widen(y[c]);
  pool.for_each_input(at, [&](int64_t, int64_t pixel) {
    const T* from = x + pixel * pool.channels;
    W* to = dx + pixel * pool.channels;
    for (int64_t c = 0; c < count; ++c) {
      const W given = widen(from[c]) == best[c] ? open[c] : W(0);
      to[c] += given;
      open[c] -= given;
    }
  });
}

// The same with the places of the maxima given by `taps`.
template <typename T>
void taps_grad_block(const MaxPool& pool, const T* dy, const uint8_t* taps, const Pixels& at, int64_t count,
                     Wide<T>* dx) {
  using W = Wide<T>;
  W gradient[kMaxBlock];
  int32_t places[kMaxBlock];
  for (int64_t c = 0; c < count; ++c) gradient[c] = widen(dy[c]), places[c] = taps[c];
  pool.for_each_input(at, [&](int64_t tap, int64_t pixel) {
    W* to = dx + pixel * pool.channels;
    for (int64_t c = 0; c < count; ++c) to[c] += places[c] == int32_t(tap) ? gradient[c] : W(0);
  });
}

// dX as the sum over windows of what `add(context, image's first element in X, window's in Y, window, channels, sums)`
// adds to the sums of the image, from the window's first channel on.
template <typename T, typename Add>
std::unique_ptr<Kernel> sum_over_windows(const MaxPool& pool, Add add) {
  using W = Wide<T>;
  constexpr bool kDirect = std::is_same_v<T, W>;
  const int64_t image = pool.image(), out_image = pool.out_image();
  return make_kernel(
      [=](const KernelContext& context) {
        T* dx = output<T>(context, 0);
        W* all_sums = static_cast<W*>(kDirect ? static_cast<void*>(dx) : context.workspace);
        parallel_for(pool.batch, 2 * out_image * pool.taps() + image, [=, &pool](int64_t begin, int64_t end) {
          for (int64_t n = begin; n < end; ++n) {
            W* sums = all_sums + n * image;
            std::fill(sums, sums + image, W(0));
            int64_t out = n * out_image;
            Pixels at;
            for (at[0] = 0; at[0] < pool.out[0]; ++at[0]) {
              for (at[1] = 0; at[1] < pool.out[1]; ++at[1]) {
                for (at[2] = 0; at[2] < pool.out[2]; ++at[2], out += pool.channels) {
                  for (int64_t c = 0; c < pool.channels; c += kMaxBlock) {
                    add(context, n * image + c, out + c, at, std::min(kMaxBlock, pool.channels - c), sums + c);
                  }
                }
              }
            }
            if constexpr (!kDirect) {
              for (int64_t i = 0; i < image; ++i) dx[n * image + i] = narrow<T>(sums[i]);
            }
          }
        });
      },
      kDirect ? 0 : pool.batch * image * int64_t(sizeof(W)));
}

std::unique_ptr<Kernel> max_grad_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using In = MaxPoolGradInput;
  const MaxPool pool(request.node, request.inputs[In::X].shape, request.inputs[In::dY].shape);
  return sum_over_windows<T>(
      pool, [pool](const KernelContext& c, int64_t x, int64_t out, const Pixels& at, int64_t count, Wide<T>* sums) {
        grad_block(pool, input<T>(c, In::dY) + out, input<T>(c, In::X) + x, input<T>(c, In::Y) + out, at, count, sums);
      });
}

std::unique_ptr<Kernel> taps_grad_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using In = MaxPoolTapsGradInput;
  const MaxPool pool(request.node, request.outputs[0].shape, request.inputs[In::dY].shape);
  return sum_over_windows<T>(
      pool, [pool](const KernelContext& c, int64_t, int64_t out, const Pixels& at, int64_t count, Wide<T>* sums) {
        taps_grad_block(pool, input<T>(c, In::dY) + out, input<uint8_t>(c, In::Taps) + out, at, count, sums);
      });
}

void check_attributes(const Node& node, const Window& window) {
  flag_attribute(node, "ceil_mode");
  flag_attribute(node, "storage_order");
  for (int axis = 0; axis < 3; ++axis) {
    // Else a window could lie in the padding altogether, where there is no maximum.
    if (std::max(window.pad_begin[axis], window.pad_end[axis]) >= window.span(axis)) {
      fail(node, fmt::format("attribute 'pads' holds {}; expected less than the window's {}",
                             std::max(window.pad_begin[axis], window.pad_end[axis]), window.span(axis)));
    }
  }
}

TensorType max_type(const Node& node, const TensorType& x) {
  const Window window = window_of(node, x.shape);
  check_attributes(node, window);
  const bool ceil_mode = int_attribute(node, "ceil_mode") != 0;
  check_fits(node, window, x, ceil_mode);
  return {x.dtype, windowed_shape(window, x.shape, x.shape[1], ceil_mode)};
}

void infer_pool(InferContext& context) {
  const TensorType y = max_type(context.node(), floating_input(context, 0, {3, 4, 5}));
  context.set_output(MaxPoolOutput::Y, y);
  context.set_output(MaxPoolOutput::Indices, {DataType::Int64, y.shape});
}

void infer_max_grad(InferContext& context) {
  const TensorType& x = floating_input(context, MaxPoolGradInput::X, {3, 4, 5});
  const TensorType y = max_type(context.node(), x);
  for (const size_t i : {MaxPoolGradInput::dY, MaxPoolGradInput::Y}) {
    expect_input(context, i, y, "the type of MaxPool's output");
  }
  context.set_output(0, x);
}

// Type of the taps of MaxPoolTaps for an image of type `x`. A tap's number is a byte.
TensorType taps_type(const InferContext& context, const TensorType& x) {
  constexpr int64_t kMostTaps = 255;
  const int64_t taps = SlidingWindow{{}, {}, window_of(context.node(), x.shape)}.taps();
  if (taps > kMostTaps) {
    context.fail(fmt::format("attribute 'kernel_shape' has {} elements; expected at most {}", taps, kMostTaps));
  }
  return {DataType::Uint8, max_type(context.node(), x).shape};
}

void infer_taps(InferContext& context) {
  const TensorType& x = floating_input(context, 0, {3, 4});
  context.set_output(MaxPoolTapsOutput::Y, max_type(context.node(), x));
  context.set_output(MaxPoolTapsOutput::Taps, taps_type(context, x));
}

void infer_taps_grad(InferContext& context) {
  using In = MaxPoolTapsGradInput;
  const TensorType& dy = floating_input(context, In::dY, {3, 4});
  TensorType x = {dy.dtype, {dy.shape[0], dy.shape[1]}};
  for (const int64_t extent : ints_attribute(context.node(), "image")) x.shape.push_back(extent);
  if (x.shape.size() != dy.shape.size()) {
    context.fail(fmt::format("attribute 'image' has {} extents; expected {}", x.shape.size() - 2, dy.shape.size() - 2));
  }
  expect_input(context, In::dY, max_type(context.node(), x), "the type of MaxPoolTaps' output");
  expect_input(context, In::Taps, taps_type(context, x), "as MaxPoolTaps makes them");
  context.set_output(0, x);
}

void expand_global(ExpandContext& context) {
  const Shape shape = context.type(context.input(0)).shape;
  const std::vector<int64_t> whole(shape.begin() + 2, shape.end());
  context.replace_output(0, context.add("MaxPool", "", {context.input(0)}, 1, {{"kernel_shape", whole}})[0]);
}

const std::vector<PoolCase>& max_cases() {
  static const std::vector<PoolCase> cases = {{"halving", {2, 6, 8, 8}, 2, 2, 0, 0, 1, 0},
                                              {"one pixel", {1, 1, 1, 1}, 1, 1, 0, 0, 1, 0},
                                              {"overlapping", {2, 5, 7, 9}, 3, 2, 1, 1, 1, 0},
                                              {"dense", {1, 3, 6, 5}, 3, 1, 1, 1, 1, 0},
                                              {"ceil", {2, 4, 6, 7}, 2, 2, 0, 0, 1, 1},
                                              {"ceil, padded", {1, 3, 6, 6}, 3, 2, 1, 1, 1, 1},
                                              {"ceil, one that is too large", {2, 3, 2, 5}, 3, 2, 0, 0, 1, 1},
                                              {"dilated", {1, 2, 9, 8}, 2, 2, 1, 1, 2, 0},
                                              {"gaps", {1, 3, 7, 7}, 2, 3, 0, 0, 1, 0},
                                              {"same upper", {2, 4, 8, 7}, 3, 2, 0, 0, 1, 0, "SAME_UPPER"},
                                              {"same lower", {1, 3, 6, 7}, 2, 1, 0, 0, 1, 0, "SAME_LOWER"},
                                              {"sequence", {2, 5, 9}, 3, 2, 1, 1, 1, 1},
                                              {"volume", {2, 3, 5, 4, 6}, 3, 2, 1, 1, 1, 0},
                                              {"volume, dilated", {1, 8, 5, 5, 4}, 2, 1, 0, 0, 2, 0},
                                              {"tiles", {1, 72, 19, 35}, 3, 2, 1, 1, 1, 0},
                                              {"tiles, large windows", {1, 8, 18, 17}, 5, 2, 2, 2, 1, 0},
                                              {"tiles, dilated", {1, 8, 18, 20}, 2, 1, 1, 1, 2, 0},
                                              {"thirds", {1, 8, 10, 11}, 3, 3, 1, 1, 1, 0},
                                              {"deep padding", {1, 8, 9, 8}, 3, 2, 2, 2, 1, 0},
                                              {"deep padding, odd channels", {1, 3, 5, 6}, 3, 2, 2, 1, 1, 0},
                                              {"225 taps", {1, 8, 17, 18}, 15, 4, 7, 7, 1, 0},
                                              {"many channels", {2, 130, 4, 4}, 2, 2, 0, 0, 1, 0},
                                              {"LeNet", {64, 20, 24, 24}, 2, 2, 0, 0, 1, 0}};
  return cases;
}

std::vector<Sample> max_samples() {
  std::vector<Sample> samples;
  for (const PoolCase& c : max_cases()) {
    samples.push_back({.name = c.name,
                       .inputs = {{.type = {DataType::Float32, c.shape}, .distinct = true}},
                       .attributes = c.attributes(),
                       .tolerance = 0});
    if (c.shape[1] > 8) continue;
    samples.push_back(samples.back());
    samples.back().name += ", indices";
    samples.back().output_count = 2;
    samples.back().attributes.set("storage_order", int64_t(c.shape[1] % 2));
  }
  return samples;
}

// Y is a function of X, so it cannot be drawn: X and Y are 1 throughout, all ties, of which the first must win.
// Distinct maxima are in MaxPool's own gradient check.
std::vector<Sample> max_grad_samples() {
  std::vector<Sample> samples;
  for (const PoolCase& c : max_cases()) {
    const Shape y = c.pooled();
    samples.push_back(
        {.name = c.name,
         .inputs = {{{DataType::Float32, y}}, {{DataType::Float32, c.shape}, 1, 1}, {{DataType::Float32, y}, 1, 1}},
         .attributes = c.attributes(),
         .tolerance = 1e-6});
  }
  return samples;
}

bool are_images(const PoolCase& c) {
  return c.shape.size() <= 4;
}

std::vector<Sample> taps_samples() {
  std::vector<Sample> samples;
  for (const PoolCase& c : max_cases()) {
    if (!are_images(c)) continue;
    for (const bool ties : {false, true}) {  // all elements alike: the first of each window is its maximum
      samples.push_back(
          {.name = c.name + (ties ? ", ties" : ""),
           .inputs = {{.type = {DataType::Float32, c.shape}, .low = ties ? 1.0 : -1.0, .high = 1, .distinct = !ties}},
           .output_count = 2,
           .attributes = c.attributes(),
           .tolerance = 0});
    }
  }
  return samples;
}

// Taps are drawn, also such as lie in the padding or in no window: nothing flows back there.
std::vector<Sample> taps_grad_samples() {
  std::vector<Sample> samples;
  for (const PoolCase& c : max_cases()) {
    if (!are_images(c)) continue;
    const Shape y = c.pooled();
    const double taps = std::pow(double(c.kernel), double(c.shape.size() - 2));
    samples.push_back({.name = c.name,
                       .inputs = {{{DataType::Float32, y}}, {{DataType::Uint8, y}, 0, taps}},
                       .attributes = c.attributes(),
                       .tolerance = 1e-6});
    samples.back().attributes.set("image", Shape(c.shape.begin() + 2, c.shape.end()));
  }
  return samples;
}

std::vector<AttributeSpec> max_specs() {
  return pool_specs(
      int_spec("storage_order", 0, "how Indices counts pixels: 0: row by row; 1: the first spatial axis is innermost"));
}

}  // namespace

void register_nn_max_pool(OpRegistry& registry) {
  registry.add({.domain = "",
                .name = "MaxPool",
                .doc = "the greatest value of each window, and its index in X, row-major",
                .inputs = {{.name = "X", .lowered = true}},
                .outputs = {{.name = "Y", .lowered = true}, {.name = "Indices", .arity = OperandSpec::Optional}},
                .attributes = max_specs(),
                .layout = Layout::ChannelsLast,
                .infer = infer_pool,
                .grad =
                    [](GradContext& c) {
                      c.add_input_gradient("arbalest.MaxPoolGrad", {c.input(0), c.output(0)},
                                           window_attributes(c.node(), {"ceil_mode"}));
                    },
                .cost = pool_cost,
                .samples = max_samples,
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return max_cpu(r, t); })});
  registry.add(
      {.domain = "arbalest",
       .name = "MaxPoolGrad",
       .doc = "each window's dY at the first element of X that equals Y",
       .inputs = {{.name = "dY", .lowered = true}, {.name = "X", .lowered = true}, {.name = "Y", .lowered = true}},
       .outputs = {{.name = "dX", .lowered = true}},
       .attributes = max_specs(),
       .internal = true,
       .layout = Layout::ChannelsLast,
       .infer = infer_max_grad,
       .cost = elementwise_cost(1),
       .samples = max_grad_samples,
       .cpu = floating_kernel([](const KernelRequest& r, auto t) { return max_grad_cpu(r, t); })});
  registry.add({.domain = "arbalest",
                .name = "MaxPoolTaps",
                .doc = "MaxPool of images that also tells where in its window each maximum is: row-major, from 0",
                .inputs = {{.name = "X", .lowered = true}},
                .outputs = {{.name = "Y", .lowered = true}, {.name = "Taps"}},
                .attributes = max_specs(),
                .internal = true,
                .layout = Layout::ChannelsLast,
                .infer = infer_taps,
                .cost = pool_cost,
                .samples = taps_samples,
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return taps_cpu(r, t); })});
  Op taps_grad{.domain = "arbalest",
               .name = "MaxPoolTapsGrad",
               .doc = "each window's dY at the element that Taps names",
               .inputs = {{.name = "dY", .lowered = true}, {.name = "Taps"}},
               .outputs = {{.name = "dX", .lowered = true}},
               .attributes = max_specs(),
               .internal = true,
               .layout = Layout::ChannelsLast,
               .infer = infer_taps_grad,
               .cost = elementwise_cost(1),
               .samples = taps_grad_samples,
               .cpu = floating_kernel([](const KernelRequest& r, auto t) { return taps_grad_cpu(r, t); })};
  taps_grad.attributes.push_back(required_spec("image", AttributeKind::Ints, "extents of X along the spatial axes"));
  registry.add(std::move(taps_grad));
  registry.add({.domain = "",
                .name = "GlobalMaxPool",
                .doc = "the greatest value of each channel's pixels, as (N, C, 1, …)",
                .inputs = {{.name = "X", .lowered = true}},
                .outputs = {{.name = "Y", .lowered = true}},
                .layout = Layout::ChannelsLast,
                .infer = infer_global_pool,
                .expand = expand_global});
}

}  // namespace arbalest
