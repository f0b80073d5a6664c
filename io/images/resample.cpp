// SPDX-License-Identifier: Apache-2.0
#include "io/images/resample.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace arbalest {

namespace {

constexpr int kPositionBits = 16;  // positions along an axis are multiples of 2^-16 pixels
constexpr int64_t kOne = int64_t{1} << kPositionBits;

}  // namespace

void AxisWeights::set(double start, double extent, int64_t inputs, int64_t outputs) {
  const int64_t from = std::clamp<int64_t>(std::llrint(start * kOne), 0, inputs * kOne - 1);
  const int64_t length = std::clamp<int64_t>(std::llrint(extent * kOne), 1, inputs * kOne - from);
  const int64_t begin = from >> kPositionBits, end = (from + length + kOne - 1) >> kPositionBits;
  const int64_t support = std::max(length / outputs, kOne);  // half of what the filter spans
  taps = int(std::min((2 * support + kOne - 1) >> kPositionBits, end - begin));
  first.resize(size_t(outputs));
  count.resize(size_t(outputs));
  weights.resize(size_t(outputs * taps));
  for (int64_t k = 0; k < outputs; ++k) {
    const int64_t centre = from + (2 * k + 1) * length / (2 * outputs);
    // Inputs whose middle is less than `support` away; the one that has the centre is among them.
    const int64_t low = std::max(((centre - support - kOne / 2) >> kPositionBits) + 1, begin);
    const int64_t high = std::min((centre + support + kOne / 2 - 1) >> kPositionBits, end);
    const auto height = [&](int64_t x) { return support - std::abs(x * kOne + kOne / 2 - centre); };
    int64_t total = 0;
    for (int64_t x = low; x < high; ++x) total += height(x);
    // Running sums are rounded, not weights, so that weights sum to kSum exactly. Doubles are multiplied but never
    // added, which compilers may contract: they are the same everywhere.
    const double scale = 2.0 * kSum / double(total);
    int64_t sum = 0, rounded = 0;
    uint16_t* weight = &weights[size_t(k * taps)];
    for (int64_t x = low; x < high; ++x) {
      sum += height(x);
      const int64_t next = (int64_t(double(sum) * scale) + 1) / 2;
      *weight++ = uint16_t(next - rounded);
      rounded = next;
    }
    first[size_t(k)] = int32_t(low);
    count[size_t(k)] = int32_t(high - low);
  }
}

namespace {

// Sums are made of this many bytes at once: of a row along y, and along x of a column of pixels in a strip. A strip is
// so many output rows that a pixel of each of them is a block: 64 rows of grey pixels or 16 of colour, column by
// column.
constexpr int64_t kBlock = kPixelSlack;

// Sums in 16 bits take half the time of those in 32. Each product is cut off to 1/256, half of which is added again.
constexpr int kMostInShort = 64;

// out[j] = sum over k of weights[k] · bytes[k · stride + j] / kSum, rounded, for kBlock values of j.
void weighted_sum(const uint8_t* __restrict bytes, int64_t stride, const uint16_t* __restrict weights, int count,
                  uint8_t* __restrict out) {
  if (count <= kMostInShort) {
    uint16_t sums[kBlock];
    for (int64_t j = 0; j < kBlock; ++j) sums[j] = uint16_t(128 + count / 2);
    for (int k = 0; k < count; ++k) {
      const uint32_t weight = weights[k];
      for (int64_t j = 0; j < kBlock; ++j) {
        const uint16_t value = uint16_t(bytes[k * stride + j] << 8);
        sums[j] = uint16_t(sums[j] + uint16_t((value * weight) >> 16));
      }
    }
    for (int64_t j = 0; j < kBlock; ++j) out[j] = uint8_t(sums[j] >> 8);
  } else {
    uint32_t sums[kBlock];
    for (int64_t j = 0; j < kBlock; ++j) sums[j] = 1 << 15;
    for (int k = 0; k < count; ++k) {
      const uint32_t weight = weights[k];
      for (int64_t j = 0; j < kBlock; ++j) sums[j] += bytes[k * stride + j] * weight;
    }
    for (int64_t j = 0; j < kBlock; ++j) out[j] = uint8_t(sums[j] >> 16);
  }
}

// Puts `width` pixels of one row, scaled along y alone, into its place in a strip.
template <int kPixelBytes>
void put_row(const uint8_t* bytes, int64_t width, int64_t row_bytes, const uint16_t* weights, int count,
             uint8_t* strip) {
  constexpr int64_t kPixels = kBlock / kPixelBytes;
  for (int64_t at = 0; at < width; at += kPixels, bytes += kBlock, strip += kPixels * kBlock) {
    uint8_t block[kBlock];
    weighted_sum(bytes, row_bytes, weights, count, block);
    for (int64_t x = 0; x < kPixels; ++x) std::memcpy(strip + x * kBlock, block + x * kPixelBytes, kPixelBytes);
  }
}

// Writes one pixel of each of `rows` rows of output, of which the first is at `out`, from the column that has them.
template <int kPixelBytes, int kChannels>
void take_column(const uint8_t* column, int64_t rows, int64_t row_bytes, bool last, uint8_t* out) {
  if (kPixelBytes == 4 && !last) {  // the fourth byte is the next pixel's first, which comes after it
    for (int64_t row = 0; row < rows; ++row) std::memcpy(out + row * row_bytes, column + row * 4, 4);
    return;
  }
  for (int64_t row = 0; row < rows; ++row) {
    for (int c = 0; c < kChannels; ++c) {
      out[row * row_bytes + c] = column[row * kPixelBytes + (kPixelBytes == 1 ? 0 : c)];
    }
  }
}

}  // namespace

template <int kPixelBytes, int kChannels>
void Resampler::scale(const Pixels& pixels, int64_t height, int64_t width, uint8_t* out) {
  constexpr int64_t kStripRows = kBlock / kPixelBytes;
  const int64_t left = columns_.first.front(), right = columns_.first.back() + columns_.count.back();
  const int64_t row_bytes = pixels.width * kPixelBytes, out_bytes = width * kChannels;
  strip_.resize(
      size_t((right - left + kStripRows) * kBlock));  // rows are put in blocks, the last of which may reach further
  for (int64_t top = 0; top < height; top += kStripRows, out += kStripRows * out_bytes) {
    const int64_t rows = std::min(kStripRows, height - top);
    for (int64_t row = 0; row < rows; ++row) {
      const size_t k = size_t(top + row);
      put_row<kPixelBytes>(pixels.bytes.data() + rows_.first[k] * row_bytes + left * kPixelBytes, right - left,
                           row_bytes, &rows_.weights[k * size_t(rows_.taps)], rows_.count[k],
                           &strip_[size_t(row * kPixelBytes)]);
    }
    for (int64_t x = 0; x < width; ++x) {
      const size_t k = size_t(x);
      uint8_t column[kBlock];
      weighted_sum(&strip_[size_t((columns_.first[k] - left) * kBlock)], kBlock,
                   &columns_.weights[k * size_t(columns_.taps)], columns_.count[k], column);
      take_column<kPixelBytes, kChannels>(column, rows, out_bytes, x + 1 == width, out + x * kChannels);
    }
  }
}

void Resampler::run(const Pixels& pixels, int64_t height, int64_t width, int channels, uint8_t* out) {
  rows_.set(pixels.region.top, pixels.region.height, pixels.height, height);
  columns_.set(pixels.region.left, pixels.region.width, pixels.width, width);
  if (!pixels.grey) {
    scale<4, 3>(pixels, height, width, out);
  } else if (channels == 1) {
    scale<1, 1>(pixels, height, width, out);
  } else {
    scale<1, 3>(pixels, height, width, out);
  }
}

}  // namespace arbalest
