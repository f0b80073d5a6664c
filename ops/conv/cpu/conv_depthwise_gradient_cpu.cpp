// SPDX-License-Identifier: Apache-2.0

// Filter gradients of depthwise convolutions on the CPU. A row of filter taps at a time is summed in vector registers,
// over all rows of an image, for as many channels as make two vectors. Those of EfficientNet-B0 take oneDNN five times
// as long.

#include <array>
#include <cstring>

#include "ops/conv/cpu/conv_cpu.h"
#include "ops/cpu.h"
#include "ops/names.h"

namespace arbalest {
namespace {

constexpr int64_t kMostParts = 8;  // of a batch: each has sums of its own, which are added in their order
constexpr int64_t kLanes = 8;      // channels in a vector
using Vector [[gnu::vector_size(kLanes * sizeof(float))]] = float;

inline Vector load(const float* from, Vector) {
  Vector v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
inline Vector load(const bfloat16* from, Vector) {
  Vector v;
  for (int64_t i = 0; i < kLanes; ++i) v[i] = widen(from[i]);
  return v;
}
template <typename T>
float load(const T* from, float) {
  return widen(*from);
}
inline void add_to(float* sums, Vector v) {
  for (int64_t i = 0; i < kLanes; ++i) sums[i] += v[i];
}
inline void add_to(float* sums, float v) {
  *sums += v;
}

// The values of `axis` in the output whose window's tap lies in the input: from first to one before end.
struct Reach {
  Reach(const Convolution& conv, int axis, int64_t tap) {
    const Window& window = conv.window;
    const int64_t stride = window.stride[axis], offset = tap * window.dilation[axis] - window.pad_begin[axis];
    first = offset < 0 ? (-offset + stride - 1) / stride : 0;
    end = std::min(conv.out[axis], offset >= conv.in[axis] ? 0 : (conv.in[axis] - 1 - offset) / stride + 1);
    first = std::min(first, std::max<int64_t>(0, end));
  }
  int64_t first, end;
};

// Sums of one image for `count` vectors (or single channels) from `channel` on: sums[tap · channels + channel].
template <typename V, int count, int width, typename T>
void sum_image(const Convolution& conv, const T* x, const T* dy, int64_t channel, float* sums) {
  constexpr int64_t kStep = sizeof(V) / sizeof(float);
  const int64_t channels = conv.channels, stride = conv.window.stride[2], gap = conv.window.dilation[2] * channels;
  const auto reaches = [&]<size_t... K>(std::index_sequence<K...>) {
    return std::array{Reach(conv, 2, int64_t(K))...};
  }
  (std::make_index_sequence<width>());
  int64_t first = 0, end = conv.out[2];  // where all taps of a row lie in the image
  for (const Reach& reach : reaches) first = std::max(first, reach.first), end = std::min(end, reach.end);
  end = std::max(first, end);
  for (int64_t row = 0; row < conv.window.kernel[1]; ++row) {
    V taps[width][count] = {};
    const Reach rows(conv, 1, row);
    for (int64_t oy = rows.first; oy < rows.end; ++oy) {
      const int64_t iy = oy * conv.window.stride[1] + row * conv.window.dilation[1] - conv.window.pad_begin[1];
      const T* gradient = dy + oy * conv.out[2] * channels + channel;
      const T* pixel = x + (iy * conv.in[2] - conv.window.pad_begin[2]) * channels + channel;
      const auto at_edge = [&](int64_t ox) {
        for (int k = 0; k < width; ++k) {
          if (ox < reaches[size_t(k)].first || ox >= reaches[size_t(k)].end) continue;
          for (int v = 0; v < count; ++v) {
            taps[k][v] += load(gradient + ox * channels + v * kStep, V()) *
                          load(pixel + ox * stride * channels + k * gap + v * kStep, V());
          }
        }
      };
      for (int64_t ox = 0; ox < first; ++ox) at_edge(ox);
      for (int64_t ox = first; ox < end; ++ox) {
        const T *g = gradient + ox * channels, *p = pixel + ox * stride * channels;
        V above[count];
        for (int v = 0; v < count; ++v) above[v] = load(g + v * kStep, V());
        for (int k = 0; k < width; ++k) {
          for (int v = 0; v < count; ++v) taps[k][v] += above[v] * load(p + k * gap + v * kStep, V());
        }
      }
      for (int64_t ox = end; ox < conv.out[2]; ++ox) at_edge(ox);
    }
    for (int k = 0; k < width; ++k) {
      for (int v = 0; v < count; ++v) add_to(sums + (row * width + k) * channels + channel + v * kStep, taps[k][v]);
    }
  }
}

template <int width, typename T>
std::unique_ptr<Kernel> filter_gradient(const Convolution& conv) {
  constexpr int kVectors = width > 5 ? 1 : 2;  // sums of a row of taps, and what they are made of, fit the registers
  constexpr int64_t kBlock = kVectors * kLanes;
  const int64_t channels = conv.channels, taps = conv.taps(), parts = std::min(kMostParts, conv.batch);
  const auto run = [=](const KernelContext& context) {
    const T *x = input<T>(context, ConvGradWeightInput::X), *dy = input<T>(context, ConvGradWeightInput::dY);
    float *dw = output<float>(context, 0), *all = static_cast<float*>(context.workspace);
    const int64_t blocks = channels / kBlock + channels % kBlock;  // what is left goes one by one
    const int64_t in = pixel_count(conv.in) * channels, out = pixel_count(conv.out) * channels;
    const auto sum_block = [=](int64_t part, int64_t block) {
      const int64_t whole = channels / kBlock, channel = block < whole ? block * kBlock : channels - blocks + block;
      float* sums = all + part * taps * channels;
      for (int64_t tap = 0; tap < taps; ++tap) {
        std::fill_n(sums + tap * channels + channel, block < whole ? kBlock : 1, 0.0f);
      }
      for (int64_t n = part * conv.batch / parts; n < (part + 1) * conv.batch / parts; ++n) {
        if (block < whole) {
          sum_image<Vector, kVectors, width>(conv, x + n * in, dy + n * out, channel, sums);
        } else {
          sum_image<float, 1, width>(conv, x + n * in, dy + n * out, channel, sums);
        }
      }
    };
    parallel_for(parts * blocks, conv.batch * pixel_count(conv.out) * taps * kBlock / parts,
                 [=](int64_t begin, int64_t end) {
                   for (int64_t i = begin; i < end; ++i) sum_block(i / blocks, i % blocks);
                 });
    parallel_for(channels, taps * parts, [=](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        for (int64_t tap = 0; tap < taps; ++tap) {
          float sum = 0;
          for (int64_t part = 0; part < parts; ++part) sum += all[(part * taps + tap) * channels + c];
          dw[c * taps + tap] = sum;
        }
      }
    });
  };
  return make_kernel(run, parts * taps * channels * int64_t(sizeof(float)));
}

template <typename T>
std::unique_ptr<Kernel> filter_gradient_of(const Convolution& conv) {
  switch (conv.window.kernel[2]) {
    case 3: return filter_gradient<3, T>(conv);
    case 5: return filter_gradient<5, T>(conv);
    case 7: return filter_gradient<7, T>(conv);
    default: return nullptr;
  }
}

}  // namespace

std::unique_ptr<Kernel> depthwise_filter_gradient(const Convolution& conv) {
  const bool flat = conv.in[0] == 1 && conv.out[0] == 1 && conv.window.kernel[0] == 1 && conv.window.pad_begin[0] == 0;
  if (!conv.is_depthwise() || !flat || conv.batch == 0) return nullptr;
  if (conv.x_type == DataType::Float32) return filter_gradient_of<float>(conv);
  return conv.x_type == DataType::Bfloat16 ? filter_gradient_of<bfloat16>(conv) : nullptr;
}

}  // namespace arbalest
