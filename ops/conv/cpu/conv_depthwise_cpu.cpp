// SPDX-License-Identifier: Apache-2.0

// Depthwise convolution on the CPU: each channel has one filter of its own, so that the loops run over channels, which
// are innermost in memory. Filters (C, 1, …) are turned to (taps, C) first.

#include "ops/conv/cpu/conv_cpu.h"
#include "ops/names.h"
#include "ops/nn/window_cpu.h"

namespace arbalest {
namespace {

constexpr int64_t kDepthwiseBlock = 64;  // channels whose sums are kept near

template <typename T>
const Wide<T>* turned_filters(const Convolution& conv, const T* filters, const KernelContext& context) {
  auto* turned = static_cast<Wide<T>*>(context.workspace);
  for (int64_t c = 0; c < conv.channels; ++c) {
    for (int64_t tap = 0; tap < conv.taps(); ++tap) {
      turned[tap * conv.channels + c] = widen(filters[c * conv.taps() + tap]);
    }
  }
  return turned;
}

template <typename T>
int64_t turned_bytes(const Convolution& conv) {
  return conv.taps() * conv.channels * int64_t(sizeof(Wide<T>));
}

template <typename T>
std::unique_ptr<Kernel> forward(const Convolution& conv, bool bias) {
  using In = ConvInput;
  const auto run = [conv, bias](const KernelContext& context) {
    const T* x = input<T>(context, In::X);
    const Wide<T>* b = bias ? input<Wide<T>>(context, In::B) : nullptr;
    T* y = output<T>(context, 0);
    const Wide<T>* filters = turned_filters(conv, input<T>(context, In::W), context);
    const int64_t channels = conv.channels;
    for_each_row(conv.batch, conv.out, channels * conv.taps(), [=, &conv](int64_t n, Pixels at, int64_t first) {
      const T* image = x + n * pixel_count(conv.in) * channels;
      for (at[2] = 0; at[2] < conv.out[2]; ++at[2]) {
        for (int64_t c = 0; c < channels; c += kDepthwiseBlock) {
          const int64_t count = std::min(kDepthwiseBlock, channels - c);
          Wide<T> sums[kDepthwiseBlock] = {};
          conv.for_each_input(at, [&](int64_t tap, int64_t pixel) {
            const T* from = image + pixel * channels + c;
            const Wide<T>* filter = filters + tap * channels + c;
            for (int64_t i = 0; i < count; ++i) sums[i] += widen(from[i]) * filter[i];
          });
          T* to = y + (first + at[2]) * channels + c;
          for (int64_t i = 0; i < count; ++i) to[i] = narrow<T>(b ? sums[i] + b[c + i] : sums[i]);
        }
      }
    });
  };
  return make_kernel(run, turned_bytes<T>(conv));
}

template <typename T>
std::unique_ptr<Kernel> grad_input(const Convolution& conv) {
  const auto run = [conv](const KernelContext& context) {
    const T* dy = input<T>(context, ConvGradInputInput::dY);
    T* dx = output<T>(context, 0);
    const Wide<T>* filters = turned_filters(conv, input<T>(context, ConvGradInputInput::W), context);
    const int64_t channels = conv.channels;
    for_each_row(conv.batch, conv.in, channels * conv.taps(), [=, &conv](int64_t n, Pixels at, int64_t first) {
      const T* gradients = dy + n * pixel_count(conv.out) * channels;
      for (at[2] = 0; at[2] < conv.in[2]; ++at[2]) {
        for (int64_t c = 0; c < channels; c += kDepthwiseBlock) {
          const int64_t count = std::min(kDepthwiseBlock, channels - c);
          Wide<T> sums[kDepthwiseBlock] = {};
          conv.for_each_output(at, [&](int64_t tap, int64_t pixel) {
            const T* from = gradients + pixel * channels + c;
            const Wide<T>* filter = filters + tap * channels + c;
            for (int64_t i = 0; i < count; ++i) sums[i] += widen(from[i]) * filter[i];
          });
          T* to = dx + (first + at[2]) * channels + c;
          for (int64_t i = 0; i < count; ++i) to[i] = narrow<T>(sums[i]);
        }
      }
    });
  };
  return make_kernel(run, turned_bytes<T>(conv));
}

template <typename T>
std::unique_ptr<Kernel> grad_weight(const Convolution& conv) {
  return make_kernel([conv](const KernelContext& context) {
    const T *x = input<T>(context, ConvGradWeightInput::X), *dy = input<T>(context, ConvGradWeightInput::dY);
    Wide<T>* dw = output<Wide<T>>(context, 0);
    const int64_t channels = conv.channels, taps = conv.taps(),
                  blocks = (channels + kDepthwiseBlock - 1) / kDepthwiseBlock;
    const int64_t pixels = conv.batch * pixel_count(conv.out);
    parallel_for(blocks * taps, pixels * std::min(kDepthwiseBlock, channels), [=, &conv](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t tap = i / blocks, c = i % blocks * kDepthwiseBlock,
                      count = std::min(kDepthwiseBlock, channels - c);
        Wide<T> sums[kDepthwiseBlock] = {};
        conv.for_each_pair(conv.batch, tap, [&](int64_t pixel, int64_t out_pixel) {
          const T *from = x + pixel * channels + c, *gradient = dy + out_pixel * channels + c;
          for (int64_t j = 0; j < count; ++j) sums[j] += widen(gradient[j]) * widen(from[j]);
        });
        for (int64_t j = 0; j < count; ++j) dw[(c + j) * taps + tap] = sums[j];
      }
    });
  });
}

}  // namespace

std::unique_ptr<Kernel> depthwise_conv(const Convolution& conv, bool bias) {
  return dispatch_floating(conv.x_type, [&](auto t) { return forward<decltype(t)>(conv, bias); });
}
std::unique_ptr<Kernel> depthwise_conv_grad_input(const Convolution& conv) {
  return dispatch_floating(conv.x_type, [&](auto t) { return grad_input<decltype(t)>(conv); });
}
std::unique_ptr<Kernel> depthwise_conv_grad_weight(const Convolution& conv) {
  return dispatch_floating(conv.x_type, [&](auto t) { return grad_weight<decltype(t)>(conv); });
}

}  // namespace arbalest
