// Plain loops for convolution: the oracle in double, and what runs where oneDNN is missing.

#include "ops/nn/conv_cpu.h"

#include "ops/cpu.h"
#include "ops/definition.h"

namespace arbalest {

Convolution::Convolution(const Node& node, const TensorType& x, const TensorType& w, const TensorType& y)
    : batch(x.shape[0]),
      channels(x.shape[1]),
      height(x.shape[2]),
      width(x.shape[3]),
      filters(w.shape[0]),
      out_height(y.shape[2]),
      out_width(y.shape[3]),
      group(int_attribute(node, "group")),
      window(window_of(node, {w.shape[2], w.shape[3]})),
      x_type(x.dtype),
      w_type(w.dtype),
      y_type(y.dtype) {}

double Convolution::flops() const {
  return 2.0 * double(batch * out_height * out_width * filters) * double(group_channels()) *
         double(window.kernel[0] * window.kernel[1]);
}

namespace {

constexpr int64_t kBlock = 64;  // channels whose sums are kept near

// Σ a[i]·b[i] in independent lanes, so that it vectorises.
template <typename T>
Wide<T> dot(const T* a, const T* b, int64_t count) {
  constexpr int64_t kLanes = 16;
  Wide<T> lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += widen(a[i + lane]) * widen(b[i + lane]);
  }
  Wide<T> sum = 0;
  for (; i < count; ++i) sum += widen(a[i]) * widen(b[i]);
  for (const Wide<T> lane : lanes) sum += lane;
  return sum;
}

// Input coordinate of element `tap` of the window at `out`, or −1 outside the image.
int64_t input_at(const Window& window, int axis, int64_t out, int64_t tap, int64_t extent) {
  const int64_t at = out * window.stride[axis] + tap * window.dilation[axis] - window.pad_begin[axis];
  return at < extent ? at : -1;
}

// The window whose element `tap` lies on input coordinate `at`, or −1 if there is none.
int64_t output_at(const Window& window, int axis, int64_t at, int64_t tap, int64_t extent) {
  const int64_t scaled = at + window.pad_begin[axis] - tap * window.dilation[axis];
  if (scaled < 0 || scaled % window.stride[axis] != 0) return -1;
  const int64_t out = scaled / window.stride[axis];
  return out < extent ? out : -1;
}

template <typename T>
Wide<T> convolve_pixel(const Convolution& conv, const T* image, const T* filter, int64_t first_channel, int64_t p,
                       int64_t q) {
  const int64_t depth = conv.group_channels();
  Wide<T> sum = 0;
  for (int64_t r = 0; r < conv.window.kernel[0]; ++r) {
    const int64_t h = input_at(conv.window, 0, p, r, conv.height);
    if (h < 0) continue;
    for (int64_t s = 0; s < conv.window.kernel[1]; ++s) {
      const int64_t w = input_at(conv.window, 1, q, s, conv.width);
      if (w < 0) continue;
      sum += dot(image + (h * conv.width + w) * conv.channels + first_channel,
                 filter + (r * conv.window.kernel[1] + s) * depth, depth);
    }
  }
  return sum;
}

template <typename T>
std::unique_ptr<Kernel> plain_conv(const Convolution& conv, bool bias) {
  return make_kernel([conv, bias](const KernelContext& context) {
    const T *x = input<T>(context, 0), *filters = input<T>(context, 1);
    const Wide<T>* b = bias ? input<Wide<T>>(context, 2) : nullptr;
    T* y = output<T>(context, 0);
    const int64_t filter_size = conv.window.kernel[0] * conv.window.kernel[1] * conv.group_channels();
    const int64_t rows = conv.batch * conv.out_height;
    parallel_for(rows, conv.out_width * conv.filters * filter_size, [=, &conv](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* image = x + row / conv.out_height * conv.height * conv.width * conv.channels;
        for (int64_t q = 0; q < conv.out_width; ++q) {
          T* to = y + (row * conv.out_width + q) * conv.filters;
          for (int64_t k = 0; k < conv.filters; ++k) {
            const int64_t first_channel = k / conv.group_filters() * conv.group_channels();
            const Wide<T> sum =
                convolve_pixel(conv, image, filters + k * filter_size, first_channel, row % conv.out_height, q);
            to[k] = narrow<T>(b ? sum + b[k] : sum);
          }
        }
      }
    });
  });
}

// dX at one pixel for `count` channels of a group, from `channel` on (counted within the group).
template <typename T>
void input_gradient_block(const Convolution& conv, const T* dy, const T* filters, int64_t g, int64_t h, int64_t w,
                          int64_t channel, int64_t count, T* dx) {
  const int64_t depth = conv.group_channels(), kernel_width = conv.window.kernel[1];
  const int64_t filter_size = conv.window.kernel[0] * kernel_width * depth;
  Wide<T> sums[kBlock] = {};
  for (int64_t r = 0; r < conv.window.kernel[0]; ++r) {
    const int64_t p = output_at(conv.window, 0, h, r, conv.out_height);
    if (p < 0) continue;
    for (int64_t s = 0; s < kernel_width; ++s) {
      const int64_t q = output_at(conv.window, 1, w, s, conv.out_width);
      if (q < 0) continue;
      for (int64_t k = g * conv.group_filters(); k < (g + 1) * conv.group_filters(); ++k) {
        const Wide<T> gradient = widen(dy[(p * conv.out_width + q) * conv.filters + k]);
        const T* filter = filters + k * filter_size + (r * kernel_width + s) * depth + channel;
        for (int64_t c = 0; c < count; ++c) sums[c] += gradient * widen(filter[c]);
      }
    }
  }
  for (int64_t c = 0; c < count; ++c) dx[c] = narrow<T>(sums[c]);
}

template <typename T>
std::unique_ptr<Kernel> plain_conv_grad_input(const Convolution& conv) {
  return make_kernel([conv](const KernelContext& context) {
    const T *dy = input<T>(context, 0), *filters = input<T>(context, 1);
    T* dx = output<T>(context, 0);
    const int64_t depth = conv.group_channels(), out_image = conv.out_height * conv.out_width * conv.filters;
    const int64_t taps = conv.window.kernel[0] * conv.window.kernel[1];
    const int64_t rows = conv.batch * conv.height;
    parallel_for(rows, conv.width * conv.channels * taps * conv.group_filters(),
                 [=, &conv](int64_t begin, int64_t end) {
                   for (int64_t row = begin; row < end; ++row) {
                     const T* gradients = dy + row / conv.height * out_image;
                     for (int64_t w = 0; w < conv.width; ++w) {
                       T* to = dx + (row * conv.width + w) * conv.channels;
                       for (int64_t g = 0; g < conv.group; ++g) {
                         for (int64_t c = 0; c < depth; c += kBlock) {
                           input_gradient_block(conv, gradients, filters, g, row % conv.height, w, c,
                                                std::min(kBlock, depth - c), to + g * depth + c);
                         }
                       }
                     }
                   }
                 });
  });
}

// dW of one filter at one tap for `count` channels from `channel` on (counted over all groups).
template <typename T>
void weight_gradient_block(const Convolution& conv, const T* x, const T* dy, int64_t k, int64_t r, int64_t s,
                           int64_t channel, int64_t count, Wide<T>* dw) {
  Wide<T> sums[kBlock] = {};
  for (int64_t row = 0; row < conv.batch * conv.out_height; ++row) {
    const int64_t n = row / conv.out_height, h = input_at(conv.window, 0, row % conv.out_height, r, conv.height);
    if (h < 0) continue;
    for (int64_t q = 0; q < conv.out_width; ++q) {
      const int64_t w = input_at(conv.window, 1, q, s, conv.width);
      if (w < 0) continue;
      const Wide<T> gradient = widen(dy[(row * conv.out_width + q) * conv.filters + k]);
      const T* from = x + ((n * conv.height + h) * conv.width + w) * conv.channels + channel;
      for (int64_t c = 0; c < count; ++c) sums[c] += gradient * widen(from[c]);
    }
  }
  std::copy(sums, sums + count, dw);
}

template <typename T>
std::unique_ptr<Kernel> plain_conv_grad_weight(const Convolution& conv) {
  return make_kernel([conv](const KernelContext& context) {
    const T *x = input<T>(context, 0), *dy = input<T>(context, 1);
    Wide<T>* dw = output<Wide<T>>(context, 0);
    const int64_t depth = conv.group_channels(), taps = conv.window.kernel[0] * conv.window.kernel[1];
    const int64_t pixels = conv.batch * conv.out_height * conv.out_width;
    parallel_for(conv.filters * taps, pixels * depth, [=, &conv](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t k = i / taps, r = i % taps / conv.window.kernel[1], s = i % conv.window.kernel[1];
        const int64_t first_channel = k / conv.group_filters() * depth;
        for (int64_t c = 0; c < depth; c += kBlock) {
          weight_gradient_block(conv, x, dy, k, r, s, first_channel + c, std::min(kBlock, depth - c),
                                dw + i * depth + c);
        }
      }
    });
  });
}

}  // namespace

std::unique_ptr<Kernel> conv_cpu(const KernelRequest& request) {
  const Convolution conv(request.node, request.inputs[0], request.inputs[1], request.outputs[0]);
  const bool bias = request.has_input(2);
#ifdef ARBALEST_ONEDNN
  if (auto kernel = onednn_conv(conv, bias)) return kernel;
#endif
  return dispatch_floating(conv.x_type, [&](auto t) { return plain_conv<decltype(t)>(conv, bias); });
}

std::unique_ptr<Kernel> conv_grad_input_cpu(const KernelRequest& request) {
  const Convolution conv(request.node, request.outputs[0], request.inputs[1], request.inputs[0]);
#ifdef ARBALEST_ONEDNN
  if (auto kernel = onednn_conv_grad_input(conv)) return kernel;
#endif
  return dispatch_floating(conv.x_type, [&](auto t) { return plain_conv_grad_input<decltype(t)>(conv); });
}

std::unique_ptr<Kernel> conv_grad_weight_cpu(const KernelRequest& request) {
  const Convolution conv(request.node, request.inputs[0], request.outputs[0], request.inputs[1]);
#ifdef ARBALEST_ONEDNN
  if (auto kernel = onednn_conv_grad_weight(conv)) return kernel;
#endif
  return dispatch_floating(conv.x_type, [&](auto t) { return plain_conv_grad_weight<decltype(t)>(conv); });
}

}  // namespace arbalest
