// Decoding of images: regions, sizes and formats against a reference in doubles.

#include <doctest/doctest.h>

#include <cmath>

#include "graph/error.h"
#include "io/images/image.h"
#include "tests/io/image_files.h"
#include "tests/io/test_folder.h"

using namespace arbalest;

namespace {

std::span<const std::byte> bytes_of(const FileBytes& file) {
  return std::as_bytes(std::span(file));
}

std::vector<uint8_t> decode(ImageDecoder& decoder, const FileBytes& file, const Region& region, int height, int width,
                            int channels) {
  std::vector<uint8_t> out(size_t(height * width * channels));
  PreparationTimes times;
  decoder.open(bytes_of(file));
  decoder.decode(region, height, width, channels, out.data(), times);
  return out;
}

// Sums of `inputs` along one axis, for each of `outputs`: the triangle filter of the region's part, in doubles.
std::vector<std::vector<double>> triangle(double start, double extent, int inputs, int outputs) {
  std::vector<std::vector<double>> weights;
  const double scale = extent / outputs, support = std::max(scale, 1.0);
  const int begin = int(std::floor(start)), end = std::min(int(std::ceil(start + extent)), inputs);
  for (int k = 0; k < outputs; ++k) {
    const double centre = start + (k + 0.5) * scale;
    std::vector<double> row(size_t(inputs), 0.0);
    double total = 0;
    for (int x = begin; x < end; ++x) total += row[size_t(x)] = std::max(0.0, 1 - std::abs(x + 0.5 - centre) / support);
    for (double& weight : row) weight /= total;
    weights.push_back(row);
  }
  return weights;
}

std::vector<double> reference(const TestImage& image, const Region& region, int height, int width) {
  const auto rows = triangle(region.top, region.height, image.height, height);
  const auto columns = triangle(region.left, region.width, image.width, width);
  std::vector<double> out;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int c = 0; c < image.channels; ++c) {
        double sum = 0;
        for (int v = 0; v < image.height; ++v) {
          if (rows[size_t(y)][size_t(v)] == 0) continue;
          for (int u = 0; u < image.width; ++u) {
            if (columns[size_t(x)][size_t(u)] == 0) continue;
            sum += rows[size_t(y)][size_t(v)] * columns[size_t(x)][size_t(u)] * image.at(v, u, c);
          }
        }
        out.push_back(sum);
      }
    }
  }
  return out;
}

struct Difference {
  double mean = 0, greatest = 0;
};
template <typename Expected>
Difference difference(const std::vector<uint8_t>& found, const std::vector<Expected>& expected) {
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

TEST_CASE("images: a lossless image's region is scaled by the triangle filter") {
  ImageDecoder decoder;
  const TestImage image = test_image(61, 47, 3, 60);
  for (const FileBytes& file : {encode_png(image), encode_webp(image)}) {
    CHECK(decode(decoder, file, {0, 0, 61, 47}, 47, 61, 3) == image.bytes);
    for (const Region& region : {Region{0, 0, 61, 47}, Region{5, 3, 40, 20}, Region{7.3, 2.8, 31.1, 40.9}}) {
      for (const auto& [height, width] : {std::pair(13, 17), {47, 61}, {90, 70}, {1, 1}, {100, 3}}) {
        const Difference found =
            difference(decode(decoder, file, region, height, width, 3), reference(image, region, height, width));
        CAPTURE(height);
        CHECK(found.greatest < 1.1);  // two roundings
        CHECK(found.mean < 0.5);
      }
    }
  }
}

TEST_CASE("images: a JPEG is what its writer was given, nearly") {
  ImageDecoder decoder;
  const TestImage image = test_image(83, 59, 3);
  const FileBytes file = encode_jpeg(image, {.quality = 97, .horizontal = 1, .vertical = 1});
  CHECK(difference(decode(decoder, file, {0, 0, 83, 59}, 59, 83, 3), image.bytes).mean < 1.5);
}
