// SPDX-License-Identifier: Apache-2.0
#include "tests/io/image_reference.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

namespace arbalest {

std::vector<uint8_t> decode_region(ImageDecoder& decoder, const FileBytes& file, const Region& region, int height,
                                   int width, int channels) {
  std::vector<uint8_t> out(size_t(height * width * channels));
  PreparationTimes times;
  decoder.open(bytes_of(file));
  decoder.decode(region, height, width, channels, out.data(), times);
  CHECK(times.decode > 0);
  CHECK(times.scale > 0);
  return out;
}

std::vector<uint8_t> decode_all(ImageDecoder& decoder, const FileBytes& file, int channels) {
  const ImageInfo info = image_info(bytes_of(file));
  return decode_region(decoder, file, {0, 0, double(info.width), double(info.height)}, int(info.height),
                       int(info.width), channels);
}

namespace {

struct Term {
  int input;
  double weight;
};

std::vector<std::vector<Term>> triangle(double start, double extent, int inputs, int outputs) {
  std::vector<std::vector<Term>> all;
  const double scale = extent / outputs, support = std::max(scale, 1.0);
  const int begin = int(std::floor(start)), end = std::min(int(std::ceil(start + extent)), inputs);
  for (int k = 0; k < outputs; ++k) {
    std::vector<Term> terms;
    const double centre = start + (k + 0.5) * scale;
    double total = 0;
    for (int x = begin; x < end; ++x) {
      const double weight = 1 - std::abs(x + 0.5 - centre) / support;
      if (weight <= 0) continue;
      terms.push_back({x, weight});
      total += weight;
    }
    for (Term& term : terms) term.weight /= total;
    all.push_back(terms);
  }
  return all;
}

}  // namespace

std::vector<double> scaled(const TestImage& image, const Region& region, int height, int width) {
  REQUIRE(image.bits == 8);
  const std::vector<std::vector<Term>> rows = triangle(region.top, region.height, image.height, height);
  const std::vector<std::vector<Term>> columns = triangle(region.left, region.width, image.width, width);
  std::vector<double> out;
  for (const std::vector<Term>& row : rows) {
    for (const std::vector<Term>& column : columns) {
      for (int c = 0; c < image.channels; ++c) {
        double sum = 0;
        for (const Term& y : row) {
          for (const Term& x : column) sum += y.weight * x.weight * image.at(y.input, x.input, c);
        }
        out.push_back(sum);
      }
    }
  }
  return out;
}

namespace {
template <typename Expected>
Difference compare(std::span<const uint8_t> found, const Expected& expected) {
  REQUIRE(found.size() == expected.size());
  Difference all;
  for (size_t k = 0; k < found.size(); ++k) {
    const double one = std::abs(double(found[k]) - double(expected[k]));
    all.mean += one / double(found.size());
    all.greatest = std::max(all.greatest, one);
  }
  return all;
}
}  // namespace

Difference difference(std::span<const uint8_t> found, const std::vector<double>& expected) {
  return compare(found, expected);
}

Difference difference(std::span<const uint8_t> found, std::span<const uint8_t> expected) {
  return compare(found, expected);
}

}  // namespace arbalest
