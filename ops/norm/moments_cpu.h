// SPDX-License-Identifier: Apache-2.0
#pragma once
// Means and squared deviations of the channels of a channels-last matrix, rows × channels. Sums run over chunks of
// rows of fixed size, merged in order, so that results do not depend on the number of threads.

#include <algorithm>

#include "ops/cpu.h"
#include "ops/definition.h"

namespace arbalest {

inline constexpr int64_t kChunkRows = 256;

inline int64_t row_chunks(const Rows& size) {
  return (size.rows + kChunkRows - 1) / kChunkRows;
}
inline int64_t rows_in_chunk(const Rows& size, int64_t chunk) {
  return std::min(kChunkRows, size.rows - chunk * kChunkRows);
}

// Mean and Σ (x − mean)² of each chunk: two passes over rows that stay in the cache, so that large means cost no
// digits.
template <typename T>
void chunk_moments(const Rows& size, const T* x, Wide<T>* means, Wide<T>* squares) {
  using W = Wide<T>;
  const int64_t channels = size.channels;
  parallel_for(row_chunks(size), 3 * kChunkRows * channels, [&](int64_t begin, int64_t end) {
    for (int64_t chunk = begin; chunk < end; ++chunk) {
      const int64_t rows = rows_in_chunk(size, chunk);
      const T* first = x + chunk * kChunkRows * channels;
      W *mean = means + chunk * channels, *square = squares + chunk * channels;
      std::fill(mean, mean + channels, W(0));
      std::fill(square, square + channels, W(0));
      // Sums are of differences from the chunk's first row, which are small even if the mean is large.
      for (int64_t row = 1; row < rows; ++row) {
        const T* from = first + row * channels;
        for (int64_t c = 0; c < channels; ++c) mean[c] += widen(from[c]) - widen(first[c]);
      }
      for (int64_t c = 0; c < channels; ++c) mean[c] = widen(first[c]) + mean[c] / W(rows);
      for (int64_t row = 0; row < rows; ++row) {
        const T* from = first + row * channels;
        for (int64_t c = 0; c < channels; ++c) {
          const W difference = widen(from[c]) - mean[c];
          square[c] += difference * difference;
        }
      }
    }
  });
}

// Chan's merge of moments, of one channel.
class MergedMoments {
 public:
  void add(double rows, double mean, double squares) {
    const double total = count_ + rows, difference = mean - mean_;
    squares_ += squares + difference * difference * count_ * rows / total;
    mean_ += difference * rows / total;
    count_ = total;
  }
  double mean() const { return mean_; }
  double squares() const { return squares_; }
  double variance() const { return squares_ / count_; }  // biased

 private:
  double count_ = 0, mean_ = 0, squares_ = 0;
};

template <typename W>
MergedMoments merge_moments(const Rows& size, const W* means, const W* squares, int64_t channel) {
  MergedMoments merged;
  for (int64_t chunk = 0; chunk < row_chunks(size); ++chunk) {
    const int64_t at = chunk * size.channels + channel;
    merged.add(double(rows_in_chunk(size, chunk)), double(means[at]), double(squares[at]));
  }
  return merged;
}

}  // namespace arbalest
