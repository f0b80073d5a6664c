// SPDX-License-Identifier: Apache-2.0

// Draws and pixels of arbalest.Augment, against plain computations.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "ops/builtin_ops.h"
#include "ops/check/harness.h"
#include "ops/data/augmentation.h"

using namespace arbalest;
using namespace arbalest::test;

namespace augment_test {
namespace {

using Floats = std::vector<double>;
using Ints = std::vector<int64_t>;

constexpr StepScalars kScalars{.seed = 5, .epoch = 2, .position = 1000};
constexpr double kPi = 3.141592653589793;

Tensor random_images(const Shape& shape, uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int> byte(0, 255);
  Floats pixels;
  const TensorType type = TensorType{DataType::Uint8, shape}.in(Layout::ChannelsLast);
  for (int64_t i = 0; i < type.elements(); ++i) pixels.push_back(byte(random));
  return make_tensor(type, pixels);
}

// Images of one shape and what is done to them.
struct Augmenter {
  Case node;
  Augmentation settings;

  Augmenter(const Shape& images, const Attributes& attributes)
      : node(builtin_ops().get("arbalest.Augment"), {{DataType::Uint8, images}}, 1, attributes),
        settings({.node = node.get(), .inputs = node.input_types(), .outputs = node.output_types()}) {}

  Floats operator()(const Tensor& images, const StepScalars& scalars = kScalars) const {
    const auto device = make_cpu_device();
    const Outcome outcome = run_kernel(*device, node.get(), node.output_types(), {images}, {.scalars = scalars});
    CHECK(outcome.fault == "");
    return values_of(outcome.outputs[0]);
  }
  SampleDraws draws(int64_t sample) const { return {settings, kScalars, sample}; }
  Warp warp(int64_t sample) const { return {settings, draws(sample), Placement(settings, draws(sample))}; }
};

double greatest_difference(const Floats& a, const Floats& b) {
  REQUIRE(a.size() == b.size());
  double greatest = 0;
  for (size_t i = 0; i < a.size(); ++i) greatest = std::max(greatest, std::abs(a[i] - b[i]));
  return greatest;
}

struct Moments {
  double mean = 0, deviation = 0, least = 0, most = 0;

  explicit Moments(const Floats& values) {
    const auto [low, high] = std::minmax_element(values.begin(), values.end());
    least = *low, most = *high;
    for (const double value : values) mean += value / double(values.size());
    for (const double value : values) deviation += (value - mean) * (value - mean) / double(values.size());
    deviation = std::sqrt(deviation);
  }
};

Moments moments_of(int64_t samples, const std::function<double(int64_t)>& number) {
  Floats values;
  for (int64_t n = 0; n < samples; ++n) values.push_back(number(n));
  return Moments(values);
}

// The rule of torchvision's RandomResizedCrop and RandomErasing, with another generator: the share of the area, or 0.
Floats reference_shares(int height, int width, Range area, Range ratio, int margin) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> unit(0, 1);
  Floats shares;
  for (int n = 0; n < 40000; ++n) {
    double share = 0;
    for (int attempt = 0; attempt < 10 && share == 0; ++attempt) {
      const double pixels = (area.least + unit(random) * (area.most - area.least)) * height * width;
      const double quotient = ratio.least * std::pow(ratio.most / ratio.least, unit(random));
      const double h = std::round(std::sqrt(pixels / quotient)), w = std::round(std::sqrt(pixels * quotient));
      if (h >= 1 && w >= 1 && h <= height - margin && w <= width - margin) share = h * w / (height * width);
    }
    shares.push_back(share);
  }
  return shares;
}

}  // namespace

TEST_CASE("what places crops is drawn as before there was anything else to draw") {
  const Augmenter augment({1, 3, 20, 24}, {{"pad", int64_t{2}}, {"crop", Ints{11, 12}}, {"flip", int64_t{1}}});
  for (int64_t n = 0; n < 100; ++n) {
    const Random4 draw = philox(random_key(5, hash_name("under_test")), 2, uint64_t(1000 + n));
    const Placement place(augment.settings, augment.draws(n));
    CHECK(place.top == int(below(draw.word[0], 14)) - 2);
    CHECK(place.left == int(below(draw.word[1], 17)) - 2);
    CHECK(place.mirrored == ((draw.word[2] & 1) != 0));
    CHECK(!place.upside_down);
  }
}

TEST_CASE("where no part fits, the one in the middle has the sizes that exact arithmetic says, halves up") {
  const Range seven_tenths{std::log(0.7), std::log(0.7)};
  for (int half = 1; half < 400; half += 2) {  // 5 · half · 0.7 is 3.5 · half, and just below it in doubles
    CAPTURE(half);
    CHECK(middle_box(seven_tenths, 5 * half, 100000).width == (7 * half + 1) / 2);
  }
}

TEST_CASE("a sample is augmented the same whatever batch it comes in, with everything on") {
  const Attributes everything = {{"area", Floats{0.1, 1}},
                                 {"crop", Ints{12, 13}},
                                 {"flip", int64_t{1}},
                                 {"vertical_flip", int64_t{1}},
                                 {"rotate", 20.0},
                                 {"brightness", 0.4},
                                 {"contrast", 0.4},
                                 {"saturation", 0.4},
                                 {"hue", 0.2},
                                 {"grey", 0.3},
                                 {"erase", 0.5}};
  const Tensor images = random_images({8, 3, 16, 15});
  const Floats whole = Augmenter({8, 3, 16, 15}, everything)(images);
  const Augmenter one({1, 3, 16, 15}, everything);
  const size_t size = images.bytes.size() / 8;
  Floats parts;
  for (size_t n = 0; n < 8; ++n) {
    Tensor image{one.node.input_types()[0],
                 {images.bytes.begin() + int64_t(n * size), images.bytes.begin() + int64_t((n + 1) * size)}};
    StepScalars scalars = kScalars;
    scalars.position += n;
    for (const double value : one(image, scalars)) parts.push_back(value);
  }
  CHECK(whole == parts);
  StepScalars next = kScalars;
  ++next.epoch;
  CHECK(whole != Augmenter({8, 3, 16, 15}, everything)(images, next));
}

TEST_CASE("settings that change nothing give what placing alone gives") {
  const Shape shape{6, 3, 14, 14};
  const Tensor images = random_images(shape);
  const Attributes plain = {{"flip", int64_t{1}}, {"vertical_flip", int64_t{1}}, {"mean", 0.4}, {"std", 0.3}};
  const Floats expected = Augmenter(shape, plain)(images);
  const auto with = [&](const Attributes& more) {
    Attributes attributes = plain;
    for (const NamedAttribute& each : more) attributes.set(each.name, each.value);
    return Augmenter(shape, attributes)(images);
  };
  CHECK(greatest_difference(with({{"area", Floats{1, 1}}, {"ratio", Floats{1, 1}}}), expected) < 1e-5);
  CHECK(greatest_difference(with({{"rotate", 1e-7}}), expected) < 1e-5);
  CHECK(greatest_difference(with({{"brightness", 1e-8}}), expected) < 1e-5);
  CHECK(greatest_difference(with({{"hue", 1e-8}}), expected) < 1e-5);
  CHECK(with({{"erase", 1e-12}}) == expected);
  CHECK(with({{"pad", int64_t{2}},
              {"random", int64_t{0}},
              {"crop", Ints{14, 14}},
              {"rotate", 90.0},
              {"contrast", 1.0},
              {"erase", 1.0}}) == with({{"random", int64_t{0}}}));
}

TEST_CASE("images turned upside down are so row by row, half of them") {
  const Shape shape{400, 1, 2, 1};
  Floats pixels;
  for (int n = 0; n < 400; ++n) pixels.insert(pixels.end(), {255, 0});
  const Tensor images = make_tensor({DataType::Uint8, shape}, pixels);
  const Floats found = Augmenter(shape, {{"vertical_flip", int64_t{1}}})(images);
  int turned = 0;
  for (size_t n = 0; n < 400; ++n) {
    CHECK(found[2 * n] + found[2 * n + 1] == 1);
    turned += found[2 * n + 1] == 1 ? 1 : 0;
  }
  CHECK(turned > 150);
  CHECK(turned < 250);
}

TEST_CASE("scaled parts keep to their area and ratio, lie anywhere in the image, and are as large as torchvision's") {
  const int height = 120, width = 160;
  const Augmenter augment({1, 3, height, width}, {{"area", Floats{0.08, 1}}, {"crop", Ints{32, 64}}});
  Floats shares, left, right, above, below;
  for (int64_t n = 0; n < 40000; ++n) {
    const Warp warp = augment.warp(n);
    CHECK(warp.xy == 0);
    CHECK(warp.yx == 0);
    const double w = warp.xx * 64, h = warp.yy * 32;
    CHECK(std::abs(w - std::round(w)) < 1e-9);
    CHECK(std::abs(h - std::round(h)) < 1e-9);
    // Rounding to pixels moves sides by half of one.
    CHECK((w + 0.5) / (h - 0.5) > 3.0 / 4);
    CHECK((w - 0.5) / (h + 0.5) < 4.0 / 3);
    CHECK((w + 0.5) * (h + 0.5) > 0.08 * height * width);
    shares.push_back(w * h / (height * width));
    left.push_back(warp.x + 0.5 - 0.5 * warp.xx), above.push_back(warp.y + 0.5 - 0.5 * warp.yy);
    right.push_back(width - left.back() - w), below.push_back(height - above.back() - h);
  }
  const Moments found(shares), expected(reference_shares(height, width, {0.08, 1}, {3.0 / 4, 4.0 / 3}, 0));
  CHECK(found.mean == doctest::Approx(expected.mean).epsilon(0.01));
  CHECK(found.deviation == doctest::Approx(expected.deviation).epsilon(0.02));
  for (const Floats& distance : {left, right, above, below}) CHECK(std::abs(Moments(distance).least) < 1e-9);
  CHECK(Moments(left).mean == doctest::Approx(Moments(right).mean).epsilon(0.02));
  CHECK(Moments(above).mean == doctest::Approx(Moments(below).mean).epsilon(0.02));
}

TEST_CASE("where no part fits, the middle of the nearest ratio is taken") {
  const auto part = [](int64_t height, int64_t width) {
    const Warp warp = Augmenter({1, 1, height, width}, {{"area", Floats{1, 1}}, {"crop", Ints{10, 10}}}).warp(0);
    return Floats{warp.yy * 10, warp.xx * 10, warp.y + 0.5 - warp.yy / 2, warp.x + 0.5 - warp.xx / 2};
  };
  CHECK(greatest_difference(part(30, 100), {30, 40, 0, 30}) < 1e-9);
  CHECK(greatest_difference(part(101, 30), {40, 30, 30, 0}) < 1e-9);
}

// An image whose value is a + b · column + c · row: blended linearly it is so between pixels, too.
TEST_CASE("a plane stays a plane: output pixels show the places that the map says") {
  const int64_t size = 64, crop = 24;
  Floats pixels;
  for (int64_t n = 0; n < 40; ++n) {
    for (int64_t row = 0; row < size; ++row) {
      for (int64_t column = 0; column < size; ++column) pixels.push_back(double(10 + 2 * column + row));
    }
  }
  const Shape shape{40, 1, size, size};
  const Augmenter augment(shape, {{"area", Floats{0.1, 0.3}},
                                  {"rotate", 40.0},
                                  {"flip", int64_t{1}},
                                  {"vertical_flip", int64_t{1}},
                                  {"crop", Ints{crop, crop}}});
  const Floats found = augment(make_tensor({DataType::Uint8, shape}, pixels));
  int seen = 0;
  for (int64_t n = 0; n < 40; ++n) {
    const SampleDraws draws = augment.draws(n);
    const Box box = random_box(draws, 0, {0.1, 0.3}, {std::log(3.0 / 4), std::log(4.0 / 3)}, size, size, 0);
    const Placement place(augment.settings, draws);
    const double angle = (2 * uniform(draws(10).word[0]) - 1) * 40 * kPi / 180;
    for (int64_t row = 0; row < crop; ++row) {
      for (int64_t column = 0; column < crop; ++column) {
        // Back from the output: unflipped, turned back about the middle, scaled, and put where the part was cut out.
        double right = double(column) + 0.5 - crop / 2.0, down = double(row) + 0.5 - crop / 2.0;
        if (place.mirrored) right = -right;
        if (place.upside_down) down = -down;
        const double across = std::cos(angle) * right + std::sin(angle) * down;
        const double along = std::cos(angle) * down - std::sin(angle) * right;
        const double x = box.left + box.width * (0.5 + across / crop) - 0.5;
        const double y = box.top + box.height * (0.5 + along / crop) - 0.5;
        if (x < 0 || y < 0 || x > size - 1 || y > size - 1) continue;
        ++seen;
        CHECK(found[size_t((n * crop + row) * crop + column)] * 255 == doctest::Approx(10 + 2 * x + y).epsilon(1e-4));
      }
    }
  }
  CHECK(seen > 40 * crop * crop / 2);
}

TEST_CASE("images are surrounded by zeros where they turn, and end with their last pixel where they are scaled") {
  // White is 2 after normalisation. A quarter of a turn or less brings zeros into the corners.
  const Shape shape{64, 1, 16, 16};
  const Tensor white = make_tensor({DataType::Uint8, shape}, Floats(64 * 256, 255));
  const Attributes normalised = {{"mean", 0.5}, {"std", 0.25}};
  Attributes turned = normalised, scaled = normalised;
  turned.set("rotate", 45.0);
  scaled.set("area", Floats{0.2, 1});
  scaled.set("crop", Ints{40, 40});
  for (const double value : Augmenter({64, 1, 16, 16}, scaled)(white)) CHECK(value == doctest::Approx(2));
  const Augmenter augment(shape, turned);
  const Floats found = augment(white);
  // The slow way: the four neighbours of each place, zero where there is no pixel.
  for (int64_t n = 0; n < 64; ++n) {
    const Warp warp = augment.warp(n);
    for (int row = 0; row < 16; ++row) {
      for (int column = 0; column < 16; ++column) {
        const double x = warp.xx * column + warp.xy * row + warp.x, y = warp.yx * column + warp.yy * row + warp.y;
        double expected = 0;
        for (int i = -20; i < 40; ++i) {
          for (int j = -20; j < 40; ++j) {
            if (i < 0 || j < 0 || i > 15 || j > 15) continue;
            expected += 2 * std::max(0.0, 1 - std::abs(x - j)) * std::max(0.0, 1 - std::abs(y - i));
          }
        }
        CHECK(std::abs(found[size_t((n * 16 + row) * 16 + column)] - expected) < 1e-4);
      }
    }
  }
  CHECK(*std::min_element(found.begin(), found.end()) == 0);
}

TEST_CASE("angles are uniform") {
  const Augmenter augment({1, 1, 9, 9}, {{"rotate", 30.0}});
  const Moments angle = moments_of(20000, [&](int64_t n) {
    const Warp warp = augment.warp(n);
    CHECK(warp.xx * warp.xx + warp.xy * warp.xy == doctest::Approx(1));
    return std::atan2(warp.xy, warp.xx) * 180 / kPi;
  });
  CHECK(std::abs(angle.mean) < 0.5);
  CHECK(angle.deviation == doctest::Approx(30 / std::sqrt(3)).epsilon(0.02));
  CHECK(angle.least < -29.9);
  CHECK(angle.least >= -30);
  CHECK(angle.most > 29.9);
  CHECK(angle.most <= 30);
}

TEST_CASE("validation sees the middle of the image, scaled to a shorter side") {
  const Tensor image = random_images({1, 1, 24, 36});
  const Floats pixels = values_of(image);
  Attributes attributes = {
      {"area", Floats{0.1, 1}}, {"crop", Ints{14, 14}}, {"rotate", 30.0}, {"hue", 0.0}, {"erase", 1.0}};
  Case node(builtin_ops().get("arbalest.Augment"), {image.type}, 1, attributes);
  node.get().op->for_inference(node.graph, node.node);
  CHECK(int_attribute(node.get(), "resize") == 16);  // 14 / 0.875
  const Floats found = Augmenter({1, 1, 24, 36}, node.get().attributes)(image);
  // 24 × 36 becomes 16 × 24, of which rows 1 to 14 and columns 5 to 18 are seen.
  for (int row = 0; row < 14; ++row) {
    for (int column = 0; column < 14; ++column) {
      const double x = (column + 5 + 0.5) * 1.5 - 0.5, y = (row + 1 + 0.5) * 1.5 - 0.5;
      const int left = int(x), top = int(y);
      const auto at = [&](int i, int j) { return pixels[size_t(i * 36 + j)]; };
      const double above = at(top, left) * (1 - (x - left)) + at(top, left + 1) * (x - left);
      const double below = at(top + 1, left) * (1 - (x - left)) + at(top + 1, left + 1) * (x - left);
      CHECK(found[size_t(row * 14 + column)] * 255 ==
            doctest::Approx(above * (1 - (y - top)) + below * (y - top)).epsilon(1e-5));
    }
  }
}

TEST_CASE("colours change as step after step says, and are kept within black and white once") {
  const Shape shape{200, 3, 2, 2};
  const Tensor images = random_images(shape);
  const Floats pixels = values_of(images);
  const Augmenter augment(shape,
                          {{"brightness", 0.5}, {"contrast", 0.6}, {"saturation", 1.5}, {"hue", 0.3}, {"grey", 0.25}});
  const Floats found = augment(images);
  int clipped = 0;
  for (int64_t n = 0; n < 200; ++n) {
    const Random4 words = augment.draws(n)(11);
    const double brightness = 0.5 + uniform(words.word[0]), contrast = 0.4 + 1.2 * uniform(words.word[1]);
    const double saturation = 2.5 * uniform(words.word[2]), turn = 0.6 * uniform(words.word[3]) - 0.3;
    const bool grey = uniform(augment.draws(n)(12).word[0]) < 0.25f;
    for (size_t p = 0; p < 4; ++p) {
      const size_t first = (size_t(n) * 4 + p) * 3;
      double rgb[3];
      for (size_t c = 0; c < 3; ++c) {
        rgb[c] = pixels[first + c] / 255 * brightness;
        rgb[c] = 0.5 + contrast * (rgb[c] - 0.5);
      }
      const auto luma = [&] { return 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]; };
      const double own_grey = luma();
      for (double& value : rgb) value = own_grey + saturation * (value - own_grey);
      const double y = luma(), i = 0.5959 * rgb[0] - 0.2746 * rgb[1] - 0.3213 * rgb[2],
                   q = 0.2115 * rgb[0] - 0.5227 * rgb[1] + 0.3112 * rgb[2];
      const double cosine = std::cos(2 * kPi * turn), sine = std::sin(2 * kPi * turn);
      const double i2 = cosine * i - sine * q, q2 = sine * i + cosine * q;
      rgb[0] = y + 0.95605 * i2 + 0.62075 * q2;
      rgb[1] = y - 0.27205 * i2 - 0.64721 * q2;
      rgb[2] = y - 1.10670 * i2 + 1.70442 * q2;
      const double final_grey = luma();
      for (size_t c = 0; c < 3; ++c) {
        const double value = grey ? final_grey : rgb[c];
        clipped += value < 0 || value > 1 ? 1 : 0;
        CHECK(std::abs(found[first + c] - std::clamp(value, 0.0, 1.0)) < 1e-4);
      }
    }
  }
  CHECK(clipped > 100);
}

TEST_CASE("factors fill their ranges, and as many images are grey as asked for") {
  const auto matrices = [](const Attributes& attributes) {
    const Augmenter augment({1, 3, 4, 4}, attributes);
    return [augment](int64_t n) { return Recolouring(augment.settings, augment.draws(n)); };
  };
  const auto check_range = [](const Moments& found, double least, double most) {
    CHECK(found.mean == doctest::Approx((least + most) / 2).epsilon(0.01));
    CHECK(found.deviation == doctest::Approx((most - least) / std::sqrt(12)).epsilon(0.02));
    CHECK(found.least >= least - 1e-6);
    CHECK(found.most <= most + 1e-6);
    CHECK(found.most - found.least > 0.999 * (most - least));
  };
  const auto bright = matrices({{"brightness", 0.4}});
  check_range(moments_of(20000, [&](int64_t n) { return bright(n).matrix[0]; }), 0.6, 1.4);
  const auto much = matrices({{"brightness", 1.5}});
  check_range(moments_of(20000, [&](int64_t n) { return much(n).matrix[4]; }), 0, 2.5);
  const auto contrast = matrices({{"contrast", 0.3}});
  check_range(moments_of(20000, [&](int64_t n) { return 1 - contrast(n).shift / 127.5; }), 0.7, 1.3);
  const auto saturation = matrices({{"saturation", 0.5}});
  check_range(moments_of(20000, [&](int64_t n) { return saturation(n).matrix[0] - saturation(n).matrix[3]; }), 0.5,
              1.5);
  const auto grey = matrices({{"grey", 0.2}});
  const auto is_grey = [&](int64_t n) { return std::abs(grey(n).matrix[0] - 0.299) < 1e-9 ? 1.0 : 0.0; };
  CHECK(moments_of(20000, is_grey).mean == doctest::Approx(0.2).epsilon(0.05));
}

TEST_CASE("as many images are erased as asked for, and as much of them as torchvision erases") {
  const int height = 40, width = 30;
  const Augmenter augment({1, 1, height, width},
                          {{"erase", 0.6}, {"erase_area", Floats{0.05, 0.4}}, {"erase_ratio", Floats{0.5, 3}}});
  Floats shares, tops, quotients;
  for (int64_t n = 0; n < 60000; ++n) {
    const Box box = erased_box(augment.settings, augment.draws(n));
    if (box.height == 0) continue;
    CHECK(box.top >= 0);
    CHECK(box.left >= 0);
    CHECK(box.top + box.height <= height);
    CHECK(box.left + box.width <= width);
    shares.push_back(double(box.height * box.width) / (height * width));
    quotients.push_back(double(box.height) / box.width);
    tops.push_back(double(box.top) / (height - box.height));
  }
  CHECK(double(shares.size()) / 60000 == doctest::Approx(0.6).epsilon(0.02));
  Range turned{1.0 / 3, 2};  // width over height
  const Moments found(shares), expected(reference_shares(height, width, {0.05, 0.4}, turned, 1));
  CHECK(found.mean == doctest::Approx(expected.mean).epsilon(0.01));
  CHECK(found.deviation == doctest::Approx(expected.deviation).epsilon(0.02));
  CHECK(Moments(tops).mean == doctest::Approx(0.5).epsilon(0.02));
  CHECK(Moments(quotients).most > 2.5);
  CHECK(Moments(quotients).least < 0.65);

  // And that is what becomes zero.
  const Shape shape{16, 1, height, width};
  const Augmenter always(shape, {{"erase", 1.0}, {"mean", 0.5}});
  const Floats pixels = always(make_tensor({DataType::Uint8, shape}, Floats(size_t(16 * height * width), 255)));
  for (int64_t n = 0; n < 16; ++n) {
    const Box box = erased_box(always.settings, always.draws(n));
    CHECK(box.height > 0);
    for (int row = 0; row < height; ++row) {
      for (int column = 0; column < width; ++column) {
        const double pixel = pixels[size_t((n * height + row) * width + column)];
        CHECK((box.holds(row, column) ? pixel == 0 : std::abs(pixel - 0.5) < 1e-6));  // 255 / 255 − mean, rounded
      }
    }
  }
}

}  // namespace augment_test
