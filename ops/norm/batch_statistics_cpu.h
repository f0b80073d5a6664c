// SPDX-License-Identifier: Apache-2.0
#pragma once
// Statistics of a batch for batch norms on CPUs, from the batch itself or from sums that a convolution has left.

#include <cmath>

#include "ops/norm/moments_cpu.h"
#include "ops/norm/statistics_chunks.h"

namespace arbalest {

// Arrays by channel of one batch norm in training.
template <typename W>
struct StatisticsArrays {
  const W *scale, *old_mean, *old_variance;
  W *new_mean, *new_variance, *saved_mean, *saved_inv_std;
};

// T: the element type of the input, which is operand 0 of the request in type.
template <typename T>
class BatchStatistics {
 public:
  using W = Wide<T>;

  // `given`: whether a convolution has left partials; the attribute named `chunk_pixels` states the pixels of a chunk.
  BatchStatistics(const KernelRequest& request, bool given, const char* chunk_pixels)
      : size_(rows_of(request.inputs[0])),
        epsilon_(float_attribute(request.node, "epsilon")),
        momentum_(float_attribute(request.node, "momentum")),
        correction_(double(int_attribute(request.node, "correction"))),
        given_(given) {
    if (given) chunks_ = pixel_chunks(request.inputs[0].shape, int_attribute(request.node, chunk_pixels));
  }

  const Rows& size() const { return size_; }
  bool given() const { return given_; }
  int64_t workspace() const { return (1 + (given_ ? 0 : 2 * row_chunks(size_))) * size_.channels; }  // elements

  // Writes what `arrays` names, and what x − mean is multiplied by into the first `channels` elements of `workspace`.
  // `partials`: (chunks, channels, 2), read if they are given, x if they are not.
  void take(const T* x, const W* partials, const StatisticsArrays<W>& arrays, W* workspace) const {
    const int64_t channels = size_.channels;
    W *factor = workspace, *means = factor + channels, *squares = means + row_chunks(size_) * channels;
    if (!given_) chunk_moments(size_, x, means, squares);
    const double rows = double(size_.rows), corrected = rows / std::max(rows - correction_, 1.0);
    for (int64_t c = 0; c < channels; ++c) {
      const MergedMoments moments = given_ ? merge_partials(partials, c) : merge_moments(size_, means, squares, c);
      arrays.saved_mean[c] = W(moments.mean());
      arrays.saved_inv_std[c] = W(1 / std::sqrt(moments.variance() + epsilon_));
      factor[c] = arrays.scale[c] * arrays.saved_inv_std[c];
      arrays.new_mean[c] = W((1 - momentum_) * double(arrays.old_mean[c]) + momentum_ * moments.mean());
      arrays.new_variance[c] =
          W((1 - momentum_) * double(arrays.old_variance[c]) + momentum_ * moments.variance() * corrected);
    }
  }

 private:
  MergedMoments merge_partials(const W* partials, int64_t channel) const {
    MergedMoments merged;
    for (int64_t chunk = 0; chunk < chunks_.chunks; ++chunk) {
      const W* moments = partials + (chunk * size_.channels + channel) * 2;
      const int64_t rows = std::min(chunks_.pixels, size_.rows - chunk * chunks_.pixels);
      merged.add(double(rows), double(moments[0]), double(moments[1]));
    }
    return merged;
  }

  Rows size_;
  double epsilon_, momentum_, correction_;
  bool given_;
  PixelChunks chunks_;
};

// Totals of the partial sums that a convolution has left, (chunks, channels, 2): all first ones, then all second ones.
template <typename W>
void add_partials(int64_t chunks, int64_t channels, const W* partials, W* sums) {
  for (int64_t i = 0; i < 2 * channels; ++i) {
    double total = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk)
      total += partials[chunk * channels * 2 + i % channels * 2 + i / channels];
    sums[i] = W(total);
  }
}

}  // namespace arbalest
