#include "io/images/resample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace arbalest {

namespace {

constexpr int kPositionBits = 16;  // positions along an axis are multiples of 2^-16 pixels
constexpr int64_t kOne = int64_t{1} << kPositionBits;

// Output rows are scaled along x in strips. A strip holds for each column of pixels the bytes of its rows, one after
// the other, so that what is added for one tap is contiguous: 32 rows of grey pixels or 8 of colour.
constexpr int64_t kColumnBytes = 32;

}  // namespace

void AxisWeights::set(double start, double extent, int64_t inputs, int64_t outputs) {
  const int64_t from = std::clamp<int64_t>(std::llrint(start * kOne), 0, inputs * kOne - 1);
  const int64_t length = std::clamp<int64_t>(std::llrint(extent * kOne), 1, inputs * kOne - from);
  const int64_t begin = from >> kPositionBits, end = (from + length + kOne - 1) >> kPositionBits;
  const int64_t support = std::max(length / outputs, kOne);  // half of what the filter spans
  // No weight reaches twice the mean one, so that 15 bits hold each. 22 bits times a byte are what 32 bits hold as a
  // sum.
  bits = std::min(13 + int(std::bit_width(uint64_t(support >> kPositionBits))), 22);
  taps = int(std::min(2 * ((support >> kPositionBits) + 1) + 1, end - begin));
  first.resize(size_t(outputs));
  count.resize(size_t(outputs));
  weights.resize(size_t(outputs * taps));
  for (int64_t k = 0; k < outputs; ++k) {
    const int64_t centre = from + (2 * k + 1) * length / (2 * outputs);
    // Inputs whose middle is less than `support` away.
    const int64_t low = std::max(((centre - support - kOne / 2) >> kPositionBits) + 1, begin);
    const int64_t high = std::min((centre + support + kOne / 2 - 1) >> kPositionBits, end);
    const auto height = [&](int64_t x) { return support - std::abs(x * kOne + kOne / 2 - centre); };
    int64_t total = 0;
    for (int64_t x = low; x < high; ++x) total += height(x);
    // Running sums are rounded, not weights, so that weights sum to 1 << bits exactly. Sums are less than 2^53, and
    // there is nothing here that a compiler may contract.
    const double scale = double(int64_t{1} << bits) / double(total);
    int64_t sum = 0, rounded = 0;
    int16_t* weight = &weights[size_t(k * taps)];
    for (int64_t x = low; x < high; ++x) {
      sum += height(x);
      const int64_t next = std::llrint(double(sum) * scale);
      *weight++ = int16_t(next - rounded);
      rounded = next;
    }
    first[size_t(k)] = int32_t(low);
    count[size_t(k)] = int32_t(high - low);
  }
}

namespace {

// out[j] = sum over k of weights[k] · rows[k · stride + j], for j < kWidth
template <int64_t kWidth>
void weighted_sum(const uint8_t* __restrict rows, int64_t stride, const int16_t* __restrict weights, int count,
                  int bits, uint8_t* __restrict out) {
  int32_t sums[kWidth];
  for (int64_t j = 0; j < kWidth; ++j) sums[j] = int32_t{1} << (bits - 1);
  for (int k = 0; k < count; ++k) {
    for (int64_t j = 0; j < kWidth; ++j) sums[j] += int16_t{rows[k * stride + j]} * weights[k];
  }
  for (int64_t j = 0; j < kWidth; ++j) out[j] = uint8_t(sums[j] >> bits);
}

// A row of output, still as wide as the input.
void scale_rows(const Pixels& pixels, const AxisWeights& weights, int64_t row, uint8_t* out) {
  constexpr int64_t kBlock = 64;
  const int64_t stride = pixels.width * pixels.pixel_bytes();
  const uint8_t* from = pixels.bytes.data() + weights.first[size_t(row)] * stride;
  const int16_t* weight = &weights.weights[size_t(row * weights.taps)];
  const int count = weights.count[size_t(row)];
  int64_t at = 0;
  for (; at + kBlock <= stride; at += kBlock) {
    weighted_sum<kBlock>(from + at, stride, weight, count, weights.bits, out + at);
  }
  for (; at < stride; ++at) weighted_sum<1>(from + at, stride, weight, count, weights.bits, out + at);
}

template <int kPixelBytes>
void put_in_strip(const uint8_t* line, int64_t width, int64_t row, uint8_t* strip) {
  uint8_t* to = strip + row * kPixelBytes;
  for (int64_t x = 0; x < width; ++x) std::memcpy(to + x * kColumnBytes, line + x * kPixelBytes, kPixelBytes);
}

// Writes `count` rows of output: from the column of bytes at x to pixel x of each row.
template <int kPixelBytes, int kChannels>
void take_from_column(const uint8_t* column, int64_t count, int64_t row_bytes, uint8_t* out) {
  for (int64_t row = 0; row < count; ++row, out += row_bytes) {
    for (int c = 0; c < kChannels; ++c) out[c] = column[row * kPixelBytes + (kPixelBytes == 1 ? 0 : c)];
  }
}

}  // namespace

void Resampler::run(const Pixels& pixels, int64_t height, int64_t width, int channels, uint8_t* out) {
  rows_.set(pixels.region.top, pixels.region.height, pixels.height, height);
  columns_.set(pixels.region.left, pixels.region.width, pixels.width, width);
  const int64_t strip_rows = kColumnBytes / pixels.pixel_bytes(), row_bytes = width * channels;
  line_.resize(size_t(pixels.width * pixels.pixel_bytes()));
  strip_.resize(size_t(pixels.width * kColumnBytes));
  const auto put = pixels.grey ? put_in_strip<1> : put_in_strip<4>;
  const auto take = !pixels.grey    ? take_from_column<4, 3>
                    : channels == 1 ? take_from_column<1, 1>
                                    : take_from_column<1, 3>;
  for (int64_t top = 0; top < height; top += strip_rows) {
    const int64_t count = std::min(strip_rows, height - top);
    for (int64_t row = 0; row < count; ++row) {
      scale_rows(pixels, rows_, top + row, line_.data());
      put(line_.data(), pixels.width, row, strip_.data());
    }
    for (int64_t x = 0; x < width; ++x) {
      uint8_t column[kColumnBytes];
      weighted_sum<kColumnBytes>(&strip_[size_t(columns_.first[size_t(x)] * kColumnBytes)], kColumnBytes,
                                 &columns_.weights[size_t(x * columns_.taps)], columns_.count[size_t(x)], columns_.bits,
                                 column);
      take(column, count, row_bytes, out + top * row_bytes + x * channels);
    }
  }
}

}  // namespace arbalest
