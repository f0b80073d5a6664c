// SPDX-License-Identifier: Apache-2.0
#include "ops/conv/cpu/conv_statistics_cpu.h"

#include "ops/conv/cpu/conv_cpu.h"
#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/norm/batch_norms.h"
#include "ops/norm/statistics_chunks.h"

namespace arbalest {
namespace {

// The pixels of all images, in chunks.
struct Chunks {
  PixelChunks of;
  int64_t rows, channels;

  explicit Chunks(const KernelRequest& request)
      : of(pixel_chunks(request.outputs[0].shape, int_attribute(request.node, "chunk_pixels"))),
        rows(rows_of(request.outputs[0]).rows),
        channels(request.outputs[0].shape[1]) {}

  // Calls function(chunk, first row, row after the last).
  template <typename Function>
  void for_each(Function function) const {
    parallel_for(of.chunks, 4 * of.pixels * channels, [&](int64_t begin, int64_t end) {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        function(chunk, chunk * of.pixels, std::min(rows, (chunk + 1) * of.pixels));
      }
    });
  }
};

// Means, and sums of squared deviations from them.
template <typename T>
void write_statistics(const Chunks& chunks, const T* y, Wide<T>* partials) {
  using W = Wide<T>;
  const int64_t channels = chunks.channels;
  chunks.for_each([&](int64_t chunk, int64_t begin, int64_t end) {
    for (int64_t c = 0; c < channels; ++c) {
      W mean = 0, squares = 0;
      for (int64_t row = begin; row < end; ++row) mean += widen(y[row * channels + c]) / W(end - begin);
      for (int64_t row = begin; row < end; ++row) {
        const W deviation = widen(y[row * channels + c]) - mean;
        squares += deviation * deviation;
      }
      W* to = partials + (chunk * channels + c) * 2;
      to[0] = mean, to[1] = squares;
    }
  });
}

// The batch norm's operands, by channel and by element; null if they are left out.
template <typename T>
struct AppliedNorm {
  const T *x, *y, *dy2, *x2;
  const Wide<T>*scale, *mean, *inv_std, *bias, *mean2;
};

// `g`: on entry the convolution's gradient, on return g. If Relu's mask follows from X and nothing is added, it stays
// as it was. `partials2`: those of the second batch norm, if there is one.
template <typename T>
void write_gradient_sums(const Chunks& chunks, const AppliedNorm<T>& norm, T* g, Wide<T>* partials,
                         Wide<T>* partials2) {
  using W = Wide<T>;
  const int64_t channels = chunks.channels;
  const bool stays = norm.bias != nullptr && norm.dy2 == nullptr;
  chunks.for_each([&](int64_t chunk, int64_t begin, int64_t end) {
    W* sums = partials + chunk * channels * 2;
    W* sums2 = norm.x2 ? partials2 + chunk * channels * 2 : nullptr;
    std::fill(sums, sums + channels * 2, W(0));
    if (sums2) std::fill(sums2, sums2 + channels * 2, W(0));
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t c = 0; c < channels; ++c) {
        const int64_t at = row * channels + c;
        const W deviation = widen(norm.x[at]) - norm.mean[c];
        W value = widen(g[at]) + (norm.dy2 ? widen(norm.dy2[at]) : W(0));
        if (norm.y && !(widen(norm.y[at]) > 0)) value = 0;
        if (norm.bias && !(deviation * (norm.scale[c] * norm.inv_std[c]) + norm.bias[c] > 0)) value = 0;
        if (!stays) g[at] = narrow<T>(value);
        sums[2 * c] += value;
        sums[2 * c + 1] += value * deviation;
        if (!sums2) continue;
        sums2[2 * c] += value;
        sums2[2 * c + 1] += value * (widen(norm.x2[at]) - norm.mean2[c]);
      }
    }
  });
}

}  // namespace

std::unique_ptr<Kernel> conv_statistics_cpu(const KernelRequest& request) {
  KernelRequest plain = request;
  plain.outputs.resize(1);
  const std::shared_ptr<Kernel> conv = conv_cpu(plain);
  const Chunks chunks(request);
  return dispatch_floating(request.outputs[0].dtype, [&](auto element) {
    using T = decltype(element);
    const auto run = [=](const KernelContext& c) {
      conv->run(c);
      write_statistics(chunks, output<T>(c, 0), output<Wide<T>>(c, 1));
    };
    return make_kernel(run, conv->workspace_bytes());
  });
}

std::unique_ptr<Kernel> conv_grad_input_sums_cpu(const KernelRequest& request) {
  KernelRequest plain = request;
  plain.inputs.resize(3);
  plain.outputs.resize(1);
  const std::shared_ptr<Kernel> conv = conv_grad_input_cpu(plain);
  const Chunks chunks(request);
  const bool by_y = request.has_input(3), by_x = request.has_input(7), two = request.has_input(8);
  const bool pair = request.has_input(ConvSumsInput::X2);
  return dispatch_floating(request.outputs[0].dtype, [&](auto element) {
    using T = decltype(element);
    using W = Wide<T>;
    const auto run = [=](const KernelContext& c) {
      conv->run(c);
      const AppliedNorm<T> norm{input<T>(c, 2),
                                by_y ? input<T>(c, 3) : nullptr,
                                two ? input<T>(c, 8) : nullptr,
                                pair ? input<T>(c, ConvSumsInput::X2) : nullptr,
                                input<W>(c, 4),
                                input<W>(c, 5),
                                input<W>(c, 6),
                                by_x ? input<W>(c, 7) : nullptr,
                                pair ? input<W>(c, ConvSumsInput::SavedMean2) : nullptr};
      write_gradient_sums(chunks, norm, output<T>(c, 0), output<W>(c, 1), pair ? output<W>(c, 2) : nullptr);
    };
    return make_kernel(run, conv->workspace_bytes());
  });
}

}  // namespace arbalest
