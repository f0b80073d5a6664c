// SPDX-License-Identifier: Apache-2.0

// Plain loops for convolution: the oracle in double, and the kernels of builds without oneDNN.

#include "ops/conv/cpu/conv_cpu.h"

#include "ops/definition.h"
#include "ops/names.h"
#include "ops/nn/window_cpu.h"

namespace arbalest {

Convolution::Convolution(const Node& node, const TensorType& x, const TensorType& w, const TensorType& y)
    : SlidingWindow{pixels_of(x.shape), pixels_of(y.shape),
                    window_of(node, {w.shape.begin() + 2, w.shape.end()}, x.shape)},
      batch(x.shape[0]),
      channels(x.shape[1]),
      filters(w.shape[0]),
      group(int_attribute(node, "group")),
      x_type(x.dtype),
      w_type(w.dtype),
      y_type(y.dtype) {}

double Convolution::flops() const {
  return 2.0 * double(batch * pixel_count(out) * filters) * double(group_channels()) * double(taps());
}

namespace {

constexpr int64_t kConvBlock = 64;  // channels whose sums are kept near

template <typename T>
Wide<T> channel_dot(const T* a, const T* b, int64_t count) {
  return sum_in_lanes<Wide<T>>(count, [=](int64_t i) { return widen(a[i]) * widen(b[i]); });
}

template <typename T>
std::unique_ptr<Kernel> plain_conv(const Convolution& conv, bool bias) {
  using In = ConvInput;
  return make_kernel([conv, bias](const KernelContext& context) {
    const T *x = input<T>(context, In::X), *filters = input<T>(context, In::W);
    const Wide<T>* b = bias ? input<Wide<T>>(context, In::B) : nullptr;
    T* y = output<T>(context, 0);
    const int64_t depth = conv.group_channels(), filter_size = conv.taps() * depth;
    for_each_row(conv.batch, conv.out, conv.filters * filter_size, [=, &conv](int64_t n, Pixels at, int64_t first) {
      const T* image = x + n * pixel_count(conv.in) * conv.channels;
      for (at[2] = 0; at[2] < conv.out[2]; ++at[2]) {
        T* to = y + (first + at[2]) * conv.filters;
        for (int64_t k = 0; k < conv.filters; ++k) {
          const T *from = image + k / conv.group_filters() * depth, *filter = filters + k * filter_size;
          Wide<T> sum = 0;
          conv.for_each_input(at, [&](int64_t tap, int64_t pixel) {
            sum += channel_dot(from + pixel * conv.channels, filter + tap * depth, depth);
          });
          to[k] = narrow<T>(b ? sum + b[k] : sum);
        }
      }
    });
  });
}

struct ChannelBlock {
  int64_t group, first, count;  // channels of a group, counted within it
};

// dX at one pixel.
template <typename T>
void input_gradient_block(const Convolution& conv, const T* dy, const T* filters, const ChannelBlock& block,
                          const Pixels& at, T* dx) {
  const int64_t depth = conv.group_channels(), filter_size = conv.taps() * depth;
  Wide<T> sums[kConvBlock] = {};
  conv.for_each_output(at, [&](int64_t tap, int64_t pixel) {
    for (int64_t k = block.group * conv.group_filters(); k < (block.group + 1) * conv.group_filters(); ++k) {
      const Wide<T> gradient = widen(dy[pixel * conv.filters + k]);
      const T* filter = filters + k * filter_size + tap * depth + block.first;
      for (int64_t c = 0; c < block.count; ++c) sums[c] += gradient * widen(filter[c]);
    }
  });
  for (int64_t c = 0; c < block.count; ++c) dx[c] = narrow<T>(sums[c]);
}

template <typename T>
std::unique_ptr<Kernel> plain_conv_grad_input(const Convolution& conv) {
  return make_kernel([conv](const KernelContext& context) {
    const T *dy = input<T>(context, ConvGradInputInput::dY), *filters = input<T>(context, ConvGradInputInput::W);
    T* dx = output<T>(context, 0);
    const int64_t depth = conv.group_channels(), work = conv.channels * conv.taps() * conv.group_filters();
    for_each_row(conv.batch, conv.in, work, [=, &conv](int64_t n, Pixels at, int64_t first) {
      const T* gradients = dy + n * pixel_count(conv.out) * conv.filters;
      for (at[2] = 0; at[2] < conv.in[2]; ++at[2]) {
        T* to = dx + (first + at[2]) * conv.channels;
        for (int64_t g = 0; g < conv.group; ++g) {
          for (int64_t c = 0; c < depth; c += kConvBlock) {
            input_gradient_block(conv, gradients, filters, {g, c, std::min(kConvBlock, depth - c)}, at,
                                 to + g * depth + c);
          }
        }
      }
    });
  });
}

template <typename T>
std::unique_ptr<Kernel> plain_conv_grad_weight(const Convolution& conv) {
  return make_kernel([conv](const KernelContext& context) {
    const T *x = input<T>(context, ConvGradWeightInput::X), *dy = input<T>(context, ConvGradWeightInput::dY);
    Wide<T>* dw = output<Wide<T>>(context, 0);
    const int64_t depth = conv.group_channels(), taps = conv.taps();
    const int64_t pixels = conv.batch * pixel_count(conv.out);
    parallel_for(conv.filters * taps, pixels * depth, [=, &conv](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t k = i / taps, first_channel = k / conv.group_filters() * depth;
        for (int64_t c = 0; c < depth; c += kConvBlock) {
          // The gradient of filter k at one tap, for up to kBlock channels of its group.
          const int64_t count = std::min(kConvBlock, depth - c);
          Wide<T> sums[kConvBlock] = {};
          conv.for_each_pair(conv.batch, i % taps, [&](int64_t pixel, int64_t out_pixel) {
            const Wide<T> gradient = widen(dy[out_pixel * conv.filters + k]);
            const T* from = x + pixel * conv.channels + first_channel + c;
            for (int64_t j = 0; j < count; ++j) sums[j] += gradient * widen(from[j]);
          });
          std::copy(sums, sums + count, dw + i * depth + c);
        }
      }
    });
  });
}

}  // namespace

std::unique_ptr<Kernel> conv_cpu(const KernelRequest& request) {
  using In = ConvInput;
  const Convolution conv(request.node, request.inputs[In::X], request.inputs[In::W], request.outputs[0]);
  const bool bias = request.has_input(In::B);
#ifdef ARBALEST_ONEDNN
  if (auto kernel = onednn_conv(conv, bias, request.deterministic)) return kernel;
#endif
  if (conv.is_depthwise()) return depthwise_conv(conv, bias);
  return dispatch_floating(conv.x_type, [&](auto t) { return plain_conv<decltype(t)>(conv, bias); });
}

std::unique_ptr<Kernel> conv_grad_input_cpu(const KernelRequest& request) {
  const Convolution conv(request.node, request.outputs[0], request.inputs[ConvGradInputInput::W],
                         request.inputs[ConvGradInputInput::dY]);
#ifdef ARBALEST_ONEDNN
  if (auto kernel = onednn_conv_grad_input(conv, request.deterministic)) return kernel;
#endif
  if (conv.is_depthwise()) return depthwise_conv_grad_input(conv);
  return dispatch_floating(conv.x_type, [&](auto t) { return plain_conv_grad_input<decltype(t)>(conv); });
}

std::unique_ptr<Kernel> conv_grad_weight_cpu(const KernelRequest& request) {
  const Convolution conv(request.node, request.inputs[ConvGradWeightInput::X], request.outputs[0],
                         request.inputs[ConvGradWeightInput::dY]);
  if (auto kernel = depthwise_filter_gradient(conv)) return kernel;
#ifdef ARBALEST_ONEDNN
  if (auto kernel = onednn_conv_grad_weight(conv, request.deterministic)) return kernel;
#endif
  if (conv.is_depthwise()) return depthwise_conv_grad_weight(conv);
  return dispatch_floating(conv.x_type, [&](auto t) { return plain_conv_grad_weight<decltype(t)>(conv); });
}

}  // namespace arbalest
