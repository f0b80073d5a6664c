// SPDX-License-Identifier: Apache-2.0

// Draws of arbalest.MixImages; images and labels are mixed alike.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "ops/builtin_ops.h"
#include "ops/check/harness.h"
#include "ops/data/mixing.h"

using namespace arbalest;
using namespace arbalest::test;

namespace mix_images_test {
namespace {

using Floats = std::vector<double>;

constexpr int64_t kHeight = 12, kWidth = 10, kPixels = kHeight * kWidth, kClasses = 7;
constexpr StepScalars kScalars{.seed = 5, .epoch = 2, .position = 1000};

struct Setting {
  double mixup = 0, cutmix = 0, to_cutmix = 0.5, probability = 1;
  bool per_sample = false;

  Attributes attributes() const {
    return {{"mixup", mixup},
            {"cutmix", cutmix},
            {"switch", to_cutmix},
            {"probability", probability},
            {"per_sample", int64_t{per_sample}},
            {"node", "mixed"}};
  }
  Mixing mixing(int64_t batch) const {
    const Case node(builtin_ops().get("arbalest.MixPixels"), {{DataType::Float32, {batch, 1, kHeight, kWidth}}}, 1,
                    attributes());
    return {node.get(), batch, kHeight, kWidth};
  }
};

Floats run(const char* op, const Tensor& input, const Attributes& attributes, const StepScalars& scalars = kScalars) {
  const Case node(builtin_ops().get(op), {input.type}, 1, attributes);
  const auto device = make_cpu_device();
  const Outcome outcome = run_kernel(*device, node.get(), node.output_types(), {input}, {.scalars = scalars});
  CHECK(outcome.fault == "");
  return values_of(outcome.outputs[0]);
}

// Images of one channel, image n being n + 1 everywhere.
Floats mixed_images(const Setting& setting, int64_t batch, const StepScalars& scalars = kScalars) {
  Floats pixels;
  for (int64_t n = 0; n < batch; ++n) pixels.insert(pixels.end(), size_t(kPixels), double(n + 1));
  return run("arbalest.MixPixels", make_tensor({DataType::Float32, {batch, 1, kHeight, kWidth}}, pixels),
             setting.attributes(), scalars);
}

Floats mixed_labels(const Setting& setting, const Floats& labels, const StepScalars& scalars = kScalars) {
  Attributes attributes = setting.attributes();
  attributes.set("classes", kClasses);
  attributes.set("height", kHeight);
  attributes.set("width", kWidth);
  return run("arbalest.MixLabels", make_tensor({DataType::Int32, {int64_t(labels.size())}}, labels), attributes,
             scalars);
}

}  // namespace

TEST_CASE("numbers of the Beta distribution have its mean, its variance and its quantiles") {
  for (const double alpha : {0.05, 0.2, 0.5, 0.8, 1.0, 2.0, 7.0}) {
    INFO(alpha);
    const Mixing mixing = Setting{.mixup = alpha, .per_sample = true}.mixing(1);
    constexpr int kNumbers = 40000;
    double sum = 0, squares = 0;
    int below_tenth = 0, above_quarters = 0;
    for (int64_t n = 0; n < kNumbers; ++n) {
      const double number = beta_number(MixDraws(mixing, kScalars, n), alpha);
      REQUIRE(number >= 0);
      REQUIRE(number <= 1);
      sum += number;
      squares += (number - 0.5) * (number - 0.5);
      below_tenth += number < 0.1 ? 1 : 0;
      above_quarters += number > 0.75 ? 1 : 0;
    }
    CHECK(sum / kNumbers == doctest::Approx(0.5).epsilon(0.015));
    CHECK(squares / kNumbers == doctest::Approx(0.25 / (2 * alpha + 1)).epsilon(0.025));
    if (alpha == 0.5) {  // the arcsine distribution: P(λ < x) = 2 / π · asin(√x)
      CHECK(double(below_tenth) / kNumbers == doctest::Approx(0.20483).epsilon(0.04));
      CHECK(double(above_quarters) / kNumbers == doctest::Approx(1.0 / 3).epsilon(0.03));
    }
    if (alpha == 1) {
      CHECK(double(below_tenth) / kNumbers == doctest::Approx(0.1).epsilon(0.06));
      CHECK(double(above_quarters) / kNumbers == doctest::Approx(0.25).epsilon(0.04));
    }
    if (alpha == 2) {  // P(λ < x) = 3x² − 2x³
      CHECK(double(below_tenth) / kNumbers == doctest::Approx(0.028).epsilon(0.1));
      CHECK(double(above_quarters) / kNumbers == doctest::Approx(0.15625).epsilon(0.05));
    }
  }
}

TEST_CASE("images are blended with those before them, and labels by the same shares") {
  const Setting setting{.mixup = 0.8, .per_sample = true};
  const Floats images = mixed_images(setting, 5), rows = mixed_labels(setting, {0, 1, 2, 3, 4});
  std::set<double> shares;
  for (size_t n = 0; n < 5; ++n) {
    const size_t other = n == 0 ? 4 : n - 1;
    double sum = 0;
    for (size_t k = 0; k < size_t(kClasses); ++k) {
      if (k != n && k != other) CHECK(rows[n * kClasses + k] == 0);
      sum += rows[n * kClasses + k];
    }
    CHECK(sum == doctest::Approx(1));
    const double own = rows[n * kClasses + n];
    shares.insert(own);
    for (size_t i = 0; i < size_t(kPixels); ++i) {
      CHECK(images[n * kPixels + i] == doctest::Approx(own * double(n + 1) + (1 - own) * double(other + 1)));
    }
  }
  CHECK(shares.size() == 5);
  // By default a batch has one λ, which depends on its position.
  const Setting together{.mixup = 0.8};
  const Floats same = mixed_labels(together, {0, 1, 2});
  CHECK(same[0] == same[size_t(kClasses) + 1]);
  StepScalars next = kScalars;
  ++next.position;
  CHECK(mixed_labels(together, {0, 1, 2}, next)[0] != same[0]);
}

TEST_CASE("boxes come from the image before, and labels by what is left of the own image") {
  const Setting setting{.cutmix = 1, .per_sample = true};
  constexpr int64_t kBatch = 300;
  Floats labels;
  for (int64_t n = 0; n < kBatch; ++n) labels.push_back(double(n % kClasses));
  const Floats images = mixed_images(setting, kBatch), rows = mixed_labels(setting, labels);
  double left = 0;
  for (int64_t n = 0; n < kBatch; ++n) {
    const int64_t other = n == 0 ? kBatch - 1 : n - 1;
    int64_t first_row = kHeight, last_row = -1, first_column = kWidth, last_column = -1, count = 0;
    for (int64_t i = 0; i < kPixels; ++i) {
      const double value = images[size_t(n * kPixels + i)];
      if (value == double(n + 1)) continue;
      CHECK(value == double(other + 1));
      ++count;
      first_row = std::min(first_row, i / kWidth), last_row = std::max(last_row, i / kWidth);
      first_column = std::min(first_column, i % kWidth), last_column = std::max(last_column, i % kWidth);
    }
    if (count > 0) CHECK(count == (last_row - first_row + 1) * (last_column - first_column + 1));
    const double own = 1 - double(count) / kPixels;
    left += own / kBatch;
    const auto row = [&](int64_t label) { return rows[size_t(n * kClasses + label % kClasses)]; };
    CHECK(row(int64_t(labels[size_t(n)])) == doctest::Approx(own));
    CHECK(row(int64_t(labels[size_t(other)])) == doctest::Approx(1 - own));
  }
  CHECK(left > 0.5);  // boxes are cut off at the edges, so that more is left than λ, whose mean it is
  CHECK(left < 0.75);
}

TEST_CASE("mixing and its kind have the probabilities that are asked for") {
  const Setting setting{.mixup = 0.5, .cutmix = 1, .to_cutmix = 0.3, .probability = 0.8, .per_sample = true};
  const Mixing mixing = setting.mixing(1);
  int blended = 0, cut = 0;
  constexpr int kSamples = 20000;
  for (int64_t n = 0; n < kSamples; ++n) {
    const Mix mix(mixing, kScalars, n);
    cut += mix.cuts ? 1 : 0;
    blended += !mix.cuts && mix.own < 1 ? 1 : 0;
  }
  CHECK(double(cut) / kSamples == doctest::Approx(0.24).epsilon(0.05));
  CHECK(double(blended) / kSamples == doctest::Approx(0.56).epsilon(0.03));
}

TEST_CASE("a sample is mixed by the same share whatever batch it comes in, where samples draw for themselves") {
  const Setting setting{.mixup = 0.8, .cutmix = 1, .per_sample = true};
  const Floats whole = mixed_labels(setting, {0, 1, 2, 3, 4, 5});
  StepScalars later = kScalars;
  later.position += 2;
  const Floats part = mixed_labels(setting, {2, 3, 4, 5}, later);
  for (size_t n = 1; n < 4; ++n) {  // the first of a batch has another partner
    for (size_t k = 0; k < size_t(kClasses); ++k) CHECK(part[n * kClasses + k] == whole[(n + 2) * kClasses + k]);
  }
}

TEST_CASE(
    "equal labels stay whole, labels beyond the classes spoil their row and the next, and validation mixes nothing") {
  const Setting setting{.mixup = 1};
  const Floats equal = mixed_labels(setting, {3, 3, 3});
  for (size_t n = 0; n < 3; ++n) CHECK(equal[n * kClasses + 3] == doctest::Approx(1));
  const Floats spoilt = mixed_labels(setting, {0, double(kClasses), 2, 3});
  for (const size_t n : {1, 2}) CHECK(std::isnan(spoilt[n * kClasses]));
  for (const size_t n : {0, 3}) CHECK(!std::isnan(spoilt[n * kClasses]));

  const TensorType images{DataType::Float32, {4, 1, kHeight, kWidth}}, labels{DataType::Int32, {4}};
  Case pixels(builtin_ops().get("arbalest.MixPixels"), {images}, 1, setting.attributes());
  pixels.get().op->for_inference(pixels.graph, pixels.node);
  CHECK(pixels.get().op->name == "Identity");
  Attributes attributes = setting.attributes();
  for (const auto& [name, number] : {std::pair{"classes", kClasses}, {"height", kHeight}, {"width", kWidth}}) {
    attributes.set(name, number);
  }
  Case rows(builtin_ops().get("arbalest.MixLabels"), {labels}, 1, attributes);
  rows.get().op->for_inference(rows.graph, rows.node);
  const Floats kept = run("arbalest.MixLabels", make_tensor(labels, {4, 0, 6, 6}), rows.get().attributes);
  Floats expected(4 * kClasses, 0);
  for (const size_t one : {4, 7, 20, 27}) expected[one] = 1;
  CHECK(kept == expected);
}

}  // namespace mix_images_test
