// SPDX-License-Identifier: Apache-2.0

// The glyphs source: a function of the seed, and neither too easy nor too hard.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "io/open/open_source.h"
#include "io/sources/data_order.h"
#include "io/sources/source.h"
#include "tests/io/batch.h"

using namespace arbalest;

namespace glyphs_test {
namespace {

using Samples = test::ImageBatch;

Samples all_of(const Source& source) {
  std::vector<int64_t> order(size_t(source.size()));
  std::iota(order.begin(), order.end(), 0);
  return test::image_batch(source, order);
}

constexpr int kPixels = 28 * 28, kClasses = 10;

// Softmax regression on pixels by plain SGD, one sample at a time with a falling rate.
class SoftmaxRegression {
 public:
  void train(const Samples& samples, int epochs) {
    const int64_t count = int64_t(samples.labels.size());
    const DataOrder order(1, count, true);
    for (int epoch = 0; epoch < epochs; ++epoch)
      for (int64_t i = 0; i < count; ++i) {
        const float progress = float(epoch * count + i) / float(epochs * count);
        const size_t sample = size_t(order.sample(uint64_t(epoch), i));
        step(&samples.images[sample * kPixels], samples.labels[sample], 0.004f * (1 - progress));
      }
  }

  double accuracy(const Samples& samples) {
    int right = 0;
    for (size_t i = 0; i < samples.labels.size(); ++i) {
      forward(&samples.images[i * kPixels]);
      right += std::max_element(logits_, logits_ + kClasses) - logits_ == samples.labels[i];
    }
    return double(right) / double(samples.labels.size());
  }

 private:
  void forward(const uint8_t* image) {
    for (int p = 0; p < kPixels; ++p) pixels_[p] = float(image[p]) / 64 - 0.6f;
    for (int c = 0; c < kClasses; ++c) logits_[c] = bias_[c];
    for (int p = 0; p < kPixels; ++p)
      for (int c = 0; c < kClasses; ++c) logits_[c] += weight_[p][c] * pixels_[p];
  }

  void step(const uint8_t* image, int label, float rate) {
    forward(image);
    const float most = *std::max_element(logits_, logits_ + kClasses);
    float sum = 0, gradient[kClasses];
    for (int c = 0; c < kClasses; ++c) sum += gradient[c] = std::exp(logits_[c] - most);
    for (int c = 0; c < kClasses; ++c) gradient[c] = rate * (gradient[c] / sum - (c == label ? 1.0f : 0.0f));
    for (int p = 0; p < kPixels; ++p)
      for (int c = 0; c < kClasses; ++c) weight_[p][c] -= gradient[c] * pixels_[p];
    for (int c = 0; c < kClasses; ++c) bias_[c] -= gradient[c];
  }

  float weight_[kPixels][kClasses] = {}, bias_[kClasses] = {}, pixels_[kPixels] = {}, logits_[kClasses] = {};
};

}  // namespace

TEST_CASE("glyphs: a sample is a function of seed, split and number") {
  const auto small = open_source("glyphs:?train=50&test=20", "train", 7);
  const auto large = open_source("glyphs:?train=333&test=20", "train", 7);
  CHECK(small->fields()[0].shape == Shape{1, 28, 28});
  CHECK(small->size() == 50);
  CHECK(small->fields()[1].classes == kClasses);
  CHECK_FALSE(small->resident());
  const Samples first = all_of(*small), more = all_of(*large);
  CHECK(std::equal(first.images.begin(), first.images.end(), more.images.begin()));
  CHECK(first.images != all_of(*open_source("glyphs:?train=50", "train", 8)).images);
  CHECK(first.images != all_of(*open_source("glyphs:?test=50", "test", 7)).images);
  CHECK(open_source("glyphs:?test=20", "test", 7)->size() == 20);
  const std::set<int32_t> labels(first.labels.begin(), first.labels.end());
  CHECK(labels.size() == size_t(kClasses));
}

TEST_CASE("glyphs: a few samples are drawn by themselves, and are those of the whole") {
  const Samples all = all_of(*open_source("glyphs:?train=333", "train", 7));
  const auto source = open_source("glyphs:?train=333", "train", 7);
  for (const int64_t sample : {332, 0, 17, 17, 100, 5, 332}) {  // the eighth part is 41 samples
    for (int times = 0; times < 10; ++times) {
      const Samples one = test::image_batch(*source, {sample});
      CHECK(one.labels == std::vector<int32_t>{all.labels[size_t(sample)]});
      CHECK(std::equal(one.images.begin(), one.images.end(), &all.images[size_t(sample) * kPixels]));
    }
  }
}

TEST_CASE("glyphs: the side of the picture is an option, and the digit grows with it") {
  double ink[2] = {};
  for (const int side : {28, 56}) {
    const auto source = open_source("glyphs:?train=100&size=" + std::to_string(side), "train", 1);
    CHECK(source->fields()[0].shape == Shape{1, side, side});
    const Samples samples = all_of(*source);
    ink[side == 56] =
        std::accumulate(samples.images.begin(), samples.images.end(), 0.0) / double(samples.images.size());
  }
  CHECK(ink[0] > 15);  // paper and ink, of 255
  CHECK(ink[0] < 80);
  CHECK(ink[1] == doctest::Approx(ink[0]).epsilon(0.1));
}

TEST_CASE("glyphs: softmax regression learns most of it and not all") {
  SoftmaxRegression model;
  const auto train = open_source("glyphs:", "train", 1), test = open_source("glyphs:", "test", 1);
  CHECK(train->size() == 20000);
  CHECK(test->size() == 4000);
  model.train(all_of(*train), 3);
  const double accuracy = model.accuracy(all_of(*test));
  MESSAGE("softmax regression: " << accuracy);
  CHECK(accuracy > 0.75);
  CHECK(accuracy < 0.92);
}

}  // namespace glyphs_test
