// MaxPool and its gradient, which finds the maximum again: the first one in the window's row-major order.

#include <fmt/format.h>

#include <limits>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/nn/window.h"

namespace arbalest {
namespace {

struct Pool {
  int64_t batch, channels, height, width, out_height, out_width;
  Window window;

  Pool(const Node& node, const Shape& x, const Shape& y)
      : batch(x[0]),
        channels(x[1]),
        height(x[2]),
        width(x[3]),
        out_height(y[2]),
        out_width(y[3]),
        window(window_of(node, kernel_shape_of(node))) {}

  int64_t work() const { return out_height * out_width * channels * window.kernel[0] * window.kernel[1]; }

  // Calls f(pixel of the image) for each element of the window at (p, q) that lies in the image, in row-major order.
  template <typename F>
  void for_each_pixel(int64_t p, int64_t q, const F& f) const {
    for (int64_t r = 0; r < window.kernel[0]; ++r) {
      const int64_t h = p * window.stride[0] + r * window.dilation[0] - window.pad_begin[0];
      if (h < 0 || h >= height) continue;
      for (int64_t s = 0; s < window.kernel[1]; ++s) {
        const int64_t w = q * window.stride[1] + s * window.dilation[1] - window.pad_begin[1];
        if (w >= 0 && w < width) f(h * width + w);
      }
    }
  }
};

// Channels are taken in blocks, whose running maxima stay in registers or the nearest cache.
constexpr int64_t kBlock = 64;

template <typename T>
void pool_block(const Pool& pool, const T* x, int64_t p, int64_t q, int64_t count, T* y) {
  using W = Wide<T>;
  W best[kBlock];
  std::fill(best, best + count, -std::numeric_limits<W>::infinity());
  pool.for_each_pixel(p, q, [&](int64_t pixel) {
    const T* from = x + pixel * pool.channels;
    for (int64_t c = 0; c < count; ++c) {
      const W value = widen(from[c]);
      // A NaN wins and stays, as in PyTorch.
      best[c] = value > best[c] || value != value ? value : best[c];
    }
  });
  for (int64_t c = 0; c < count; ++c) y[c] = narrow<T>(best[c]);
}

std::unique_ptr<Kernel> pool_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  const Pool pool(request.node, request.inputs[0].shape, request.outputs[0].shape);
  return make_kernel([pool](const KernelContext& context) {
    const T* x = input<T>(context, 0);
    T* y = output<T>(context, 0);
    const int64_t rows = pool.batch * pool.out_height;
    parallel_for(rows, pool.work() / std::max<int64_t>(pool.out_height, 1), [=, &pool](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t n = row / pool.out_height, p = row % pool.out_height;
        const T* image = x + n * pool.height * pool.width * pool.channels;
        for (int64_t q = 0; q < pool.out_width; ++q) {
          T* to = y + (row * pool.out_width + q) * pool.channels;
          for (int64_t c = 0; c < pool.channels; c += kBlock) {
            pool_block(pool, image + c, p, q, std::min(kBlock, pool.channels - c), to + c);
          }
        }
      }
    });
  });
}

// Adds one window's gradient to the first maximum of each channel.
template <typename T>
void grad_block(const Pool& pool, const T* dy, const T* x, const T* y, int64_t p, int64_t q, int64_t count,
                Wide<T>* dx) {
  using W = Wide<T>;
  W open[kBlock], best[kBlock];  // the gradient, until it is given away
  for (int64_t c = 0; c < count; ++c) open[c] = widen(dy[c]), best[c] = widen(y[c]);
  pool.for_each_pixel(p, q, [&](int64_t pixel) {
    const T* from = x + pixel * pool.channels;
    W* to = dx + pixel * pool.channels;
    for (int64_t c = 0; c < count; ++c) {
      const W given = widen(from[c]) == best[c] ? open[c] : W(0);
      to[c] += given;
      open[c] -= given;
    }
  });
}

// dX of one sample, summed in `sums` (height · width · channels).
template <typename T>
void sample_gradient(const Pool& pool, const T* dy, const T* x, const T* y, Wide<T>* sums) {
  std::fill(sums, sums + pool.height * pool.width * pool.channels, Wide<T>(0));
  for (int64_t p = 0; p < pool.out_height; ++p) {
    for (int64_t q = 0; q < pool.out_width; ++q) {
      const int64_t at = (p * pool.out_width + q) * pool.channels;
      for (int64_t c = 0; c < pool.channels; c += kBlock) {
        grad_block(pool, dy + at + c, x + c, y + at + c, p, q, std::min(kBlock, pool.channels - c), sums + c);
      }
    }
  }
}

std::unique_ptr<Kernel> grad_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using W = Wide<T>;
  constexpr bool kDirect = std::is_same_v<T, W>;
  const Pool pool(request.node, request.inputs[1].shape, request.inputs[0].shape);
  const int64_t image = pool.height * pool.width * pool.channels;
  const int64_t out_image = pool.out_height * pool.out_width * pool.channels;
  return make_kernel(
      [=](const KernelContext& context) {
        const T *dy = input<T>(context, 0), *x = input<T>(context, 1), *y = input<T>(context, 2);
        T* dx = output<T>(context, 0);
        W* all_sums = static_cast<W*>(kDirect ? static_cast<void*>(dx) : context.workspace);
        parallel_for(pool.batch, 2 * pool.work() + image, [=, &pool](int64_t begin, int64_t end) {
          for (int64_t n = begin; n < end; ++n) {
            W* sums = all_sums + n * image;
            sample_gradient(pool, dy + n * out_image, x + n * image, y + n * out_image, sums);
            if constexpr (!kDirect) {
              for (int64_t i = 0; i < image; ++i) dx[n * image + i] = narrow<T>(sums[i]);
            }
          }
        });
      },
      kDirect ? 0 : pool.batch * image * int64_t(sizeof(W)));
}

void check_attributes(const Node& node, const Window& window) {
  flag_attribute(node, "ceil_mode");
  if (int_attribute(node, "storage_order") != 0) fail(node, "attribute 'storage_order' must be 0");
  for (int axis = 0; axis < 2; ++axis) {
    // Else a window could lie in the padding altogether, where there is no maximum.
    if (std::max(window.pad_begin[axis], window.pad_end[axis]) >= window.span(axis)) {
      fail(node, fmt::format("attribute 'pads' holds {}; expected less than the window's {}",
                             std::max(window.pad_begin[axis], window.pad_end[axis]), window.span(axis)));
    }
  }
}

TensorType pooled_type(const Node& node, const TensorType& x) {
  const Window window = window_of(node, kernel_shape_of(node));
  check_attributes(node, window);
  check_fits(node, window, x);
  const bool ceil_mode = int_attribute(node, "ceil_mode") != 0;
  return {x.dtype,
          {x.shape[0], x.shape[1], window.output_extent(0, x.shape[2], ceil_mode),
           window.output_extent(1, x.shape[3], ceil_mode)}};
}

void infer_grad(InferContext& context) {
  const TensorType& x = floating_input(context, 1, {4});
  const TensorType y = pooled_type(context.node(), x);
  expect_input(context, 0, y, "the type of MaxPool's output");
  expect_input(context, 2, y, "the type of MaxPool's output");
  context.set_output(0, x);
}

struct Case {
  const char* name;
  Shape shape;
  int64_t kernel, stride, pad, dilation, ceil_mode;
};
const std::vector<Case>& cases() {
  static const std::vector<Case> cases = {{"halving", {2, 6, 8, 8}, 2, 2, 0, 1, 0},
                                          {"one pixel", {1, 1, 1, 1}, 1, 1, 0, 1, 0},
                                          {"overlapping", {2, 5, 7, 9}, 3, 2, 1, 1, 0},
                                          {"dense", {1, 3, 6, 5}, 3, 1, 1, 1, 0},
                                          {"ceil", {2, 4, 6, 7}, 2, 2, 0, 1, 1},
                                          {"ceil, padded", {1, 3, 6, 6}, 3, 2, 1, 1, 1},
                                          {"dilated", {1, 2, 9, 8}, 2, 2, 1, 2, 0},
                                          {"gaps", {1, 3, 7, 7}, 2, 3, 0, 1, 0},
                                          {"many channels", {2, 130, 4, 4}, 2, 2, 0, 1, 0},
                                          {"LeNet", {64, 20, 24, 24}, 2, 2, 0, 1, 0}};
  return cases;
}
Attributes attributes_of(const Case& c) {
  return {{"kernel_shape", std::vector<int64_t>{c.kernel, c.kernel}},
          {"strides", std::vector<int64_t>{c.stride, c.stride}},
          {"pads", std::vector<int64_t>(4, c.pad)},
          {"dilations", std::vector<int64_t>{c.dilation, c.dilation}},
          {"ceil_mode", c.ceil_mode}};
}

std::vector<Sample> pool_samples() {
  std::vector<Sample> samples;
  for (const Case& c : cases()) {
    samples.push_back({.name = c.name,
                       .inputs = {{.type = {DataType::Float32, c.shape}, .distinct = true}},
                       .attributes = attributes_of(c),
                       .tolerance = 0});
  }
  return samples;
}

// Y is a function of X, so it cannot be drawn: X and Y are 1 throughout, all ties, of which the first must win.
// Distinct maxima are in MaxPool's own gradient check.
std::vector<Sample> grad_samples() {
  std::vector<Sample> samples;
  for (const Case& c : cases()) {
    Window window;
    for (const int axis : {0, 1}) {
      window.kernel[axis] = c.kernel, window.stride[axis] = c.stride, window.dilation[axis] = c.dilation;
      window.pad_begin[axis] = window.pad_end[axis] = c.pad;
    }
    const Shape y{c.shape[0], c.shape[1], window.output_extent(0, c.shape[2], c.ceil_mode),
                  window.output_extent(1, c.shape[3], c.ceil_mode)};
    samples.push_back(
        {.name = c.name,
         .inputs = {{{DataType::Float32, y}}, {{DataType::Float32, c.shape}, 1, 1}, {{DataType::Float32, y}, 1, 1}},
         .attributes = attributes_of(c),
         .tolerance = 1e-6});
  }
  return samples;
}

std::vector<AttributeSpec> specs() {
  std::vector<AttributeSpec> specs = window_specs();
  specs.insert(specs.begin(), required_spec("kernel_shape", AttributeKind::Ints, "height and width of the window"));
  specs.push_back(int_spec("ceil_mode", 0, "1: windows that reach past the end count"));
  specs.push_back(int_spec("storage_order", 0, "only 0"));
  return specs;
}

}  // namespace

void register_nn_max_pool(OpRegistry& registry) {
  registry.add({.domain = "",
                .name = "MaxPool",
                .doc = "the greatest value of each window",
                .inputs = {{.name = "X", .lowered = true}},
                .outputs = {{.name = "Y", .lowered = true}},
                .attributes = specs(),
                .layout = Layout::ChannelsLast,
                .infer = [](InferContext& c) { c.set_output(0, pooled_type(c.node(), floating_input(c, 0, {4}))); },
                .grad =
                    [](GradContext& c) {
                      if (!c.needs_gradient(0)) return;
                      c.set_input_gradient(0, c.add("arbalest.MaxPoolGrad", "grad_input",
                                                    {c.output_gradient(0), c.input(0), c.output(0)}, 1,
                                                    window_attributes(c.node(), {"ceil_mode"}))[0]);
                    },
                .cost =
                    [](const Graph& graph, const Node& node) {
                      return Cost{double(input_type(graph, node, 0).elements()), operand_bytes(graph, node)};
                    },
                .samples = pool_samples,
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return pool_cpu(r, t); })});
  registry.add(
      {.domain = "arbalest",
       .name = "MaxPoolGrad",
       .doc = "each window's dY at the first element of X that equals Y",
       .inputs = {{.name = "dY", .lowered = true}, {.name = "X", .lowered = true}, {.name = "Y", .lowered = true}},
       .outputs = {{.name = "dX", .lowered = true}},
       .attributes = specs(),
       .internal = true,
       .layout = Layout::ChannelsLast,
       .infer = infer_grad,
       .cost = elementwise_cost(1),
       .samples = grad_samples,
       .cpu = floating_kernel([](const KernelRequest& r, auto t) { return grad_cpu(r, t); })});
}

}  // namespace arbalest
