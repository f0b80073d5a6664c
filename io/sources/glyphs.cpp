// SPDX-License-Identifier: Apache-2.0

// glyphs: digits drawn from strokes, each with its own hand: bent strokes, a random affine map, width, ink, something
// that covers it or is scribbled over it, and noise. Sample i is a function of (seed, split, i).

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <cmath>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/in_threads.h"
#include "base/random.h"
#include "io/sources/glyph_strokes.h"
#include "io/sources/schemes.h"

namespace arbalest {

namespace {

constexpr int kClasses = 10;
constexpr float kDegree = 0.017453293f;

// The range of each distortion, drawn uniformly. Lengths are in digit heights, the picture's side being kSide of them.
constexpr float kSide = 1.45f;
constexpr float kBend = 0.045f;  // of each point of a stroke, per axis
constexpr float kRotation = 18;  // degrees, either way
constexpr float kShear = 0.28f;  // either way
constexpr float kWide[] = {0.50f, 0.92f}, kHigh[] = {0.72f, 1.08f};
constexpr float kShift = 0.12f;             // either way, per axis
constexpr float kPen[] = {0.034f, 0.085f};  // half the stroke's width
constexpr float kInk[] = {0.60f, 1.0f};
constexpr float kPaper = 0.18f;                       // greatest brightness of the background
constexpr float kNoise[] = {0.02f, 0.11f};            // standard deviation, of the brightness
constexpr float kScribbles = 0.30f, kCovers = 0.25f;  // how often there is one

// The random numbers of one sample, in order.
class Draws {
 public:
  Draws(uint64_t key, uint64_t sample) : key_(key), sample_(sample) {}

  Random4 four() { return philox(key_, sample_, count_++); }
  uint32_t word() {
    if (used_ == 4) words_ = four(), used_ = 0;
    return words_.word[used_++];
  }
  float between(float least, float most) { return least + (most - least) * uniform(word()); }
  float between(const float (&range)[2]) { return between(range[0], range[1]); }
  float either_way(float most) { return between(-most, most); }

 private:
  uint64_t key_, sample_, count_ = 0;
  Random4 words_ = {};
  int used_ = 4;
};

// One picture, side × side, brightness from 0 to 1. Coordinates are pixels; a pixel's centre is at its index.
class Canvas {
 public:
  explicit Canvas(int side) : side_(side), ink_(size_t(side) * size_t(side)) {}

  void clear() { std::fill(ink_.begin(), ink_.end(), 0.0f); }

  // Inks a segment with round ends; edges are anti-aliased over one pixel. Where strokes cross, the darker ink stays.
  void segment(Point a, Point b, float half_width, float ink) {
    const float reach = half_width + 0.5f;
    const float dx = b.x - a.x, dy = b.y - a.y, length2 = std::max(dx * dx + dy * dy, 1e-6f);
    const int top = first(std::min(a.y, b.y) - reach), bottom = last(std::max(a.y, b.y) + reach);
    const int left = first(std::min(a.x, b.x) - reach), right = last(std::max(a.x, b.x) + reach);
    for (int y = top; y <= bottom; ++y)
      for (int x = left; x <= right; ++x) {
        const float px = float(x) - a.x, py = float(y) - a.y;
        const float t = std::clamp((px * dx + py * dy) / length2, 0.0f, 1.0f);
        const double u = px - t * dx, v = py - t * dy;
        const auto distance = float(std::sqrt(u * u + v * v));  // the bits of hypotf()
        float& pixel = at(y, x);
        pixel = std::max(pixel, ink * std::clamp(reach - distance, 0.0f, 1.0f));
      }
  }

  // Removes all ink from a square.
  void cover(Point centre, float half_side) {
    for (int y = first(centre.y - half_side); y <= last(centre.y + half_side); ++y)
      for (int x = first(centre.x - half_side); x <= last(centre.x + half_side); ++x) at(y, x) = 0;
  }

  std::span<const float> ink() const { return ink_; }

 private:
  int first(float at) const { return std::max(0, int(std::ceil(at))); }
  int last(float at) const { return std::min(side_ - 1, int(std::floor(at))); }
  float& at(int y, int x) { return ink_[size_t(y) * size_t(side_) + size_t(x)]; }

  int side_;
  std::vector<float> ink_;  // (side, side)
};

// Rotation, shear and scale about the digit's middle, then a shift; digit heights → pixels.
struct Affine {
  float xx, xy, yx, yy, x0, y0;

  Affine(Draws& draws, float side) {
    const float angle = draws.either_way(kRotation) * kDegree, shear = draws.either_way(kShear);
    const float wide = draws.between(kWide), high = draws.between(kHigh), pixels = side / kSide;
    const float cosine = std::cos(angle) * pixels, sine = std::sin(angle) * pixels;
    xx = cosine * wide;
    xy = (cosine * shear - sine) * high;
    yx = sine * wide;
    yy = (sine * shear + cosine) * high;
    x0 = (side - 1) / 2 + draws.either_way(kShift) * pixels;
    y0 = (side - 1) / 2 + draws.either_way(kShift) * pixels;
  }

  Point operator()(Point p) const {
    const float x = p.x - 0.5f, y = p.y - 0.5f;
    return {xx * x + xy * y + x0, yx * x + yy * y + y0};
  }
};

// Between b and c, of the spline through a, b, c, d.
Point catmull_rom(Point a, Point b, Point c, Point d, float t) {
  const auto axis = [t](float p, float q, float r, float s) {
    return q + 0.5f * t * (r - p + t * (2 * p - 5 * q + 4 * r - s + t * (3 * (q - r) + s - p)));
  };
  return {axis(a.x, b.x, c.x, d.x), axis(a.y, b.y, c.y, d.y)};
}

void draw(Canvas& canvas, const Stroke& stroke, std::span<const Point> points, float half_width, float ink) {
  const int steps = stroke.smooth ? 5 : 1;
  const size_t count = points.size();
  for (size_t i = 0; i + 1 < count; ++i) {
    const Point before = points[i > 0 ? i - 1 : 0], after = points[std::min(i + 2, count - 1)];
    Point from = points[i];
    for (int step = 1; step <= steps; ++step) {
      const float t = float(step) / float(steps);
      const Point to = step == steps ? points[i + 1] : catmull_rom(before, points[i], points[i + 1], after, t);
      canvas.segment(from, to, half_width, ink);
      from = to;
    }
  }
}

void draw_digit(Canvas& canvas, Draws& draws, int digit, float side) {
  const std::span<const Glyph> variants = glyphs_of(digit);
  const Glyph& glyph = variants[below(draws.word(), uint32_t(variants.size()))];
  const Affine place(draws, side);
  const float half_width = draws.between(kPen) * side / kSide, ink = draws.between(kInk);
  Point points[16];
  for (const Stroke& stroke : glyph) {
    size_t count = 0;
    assert(stroke.points.size() <= std::size(points));
    for (const Point point : stroke.points) {
      const float dx = draws.either_way(kBend), dy = draws.either_way(kBend);
      points[count++] = place({point.x + dx, point.y + dy});
    }
    draw(canvas, stroke, std::span(points, count), half_width, ink);
  }
}

void disturb(Canvas& canvas, Draws& draws, float side) {
  const auto anywhere = [&] {
    const float x = draws.between(0, side), y = draws.between(0, side);
    return Point{x, y};
  };
  if (uniform(draws.word()) < kCovers) {
    const Point centre = anywhere();
    canvas.cover(centre, draws.between(0.04f, 0.09f) * side);
  }
  if (uniform(draws.word()) < kScribbles) {
    const Point from = anywhere();
    const float dx = draws.either_way(0.3f) * side, dy = draws.either_way(0.3f) * side;
    canvas.segment(from, {from.x + dx, from.y + dy}, 0.02f * side, draws.between(kInk));
  }
}

// Paper, ink and noise to bytes. The noise is a sum of four uniform bytes: near enough to normal.
void develop(const Canvas& canvas, Draws& draws, uint8_t* pixels) {
  const float paper = draws.between(0, kPaper), sigma = draws.between(kNoise) / 147.8f;  // of the sum of four bytes
  size_t i = 0;
  for (const float ink : canvas.ink()) {
    const uint32_t word = draws.word();
    const int sum = int(word & 255) + int(word >> 8 & 255) + int(word >> 16 & 255) + int(word >> 24);
    const float brightness = paper + (1 - paper) * ink + sigma * (float(sum) - 510);
    pixels[i++] = uint8_t(std::clamp(brightness, 0.0f, 1.0f) * 255 + 0.5f);
  }
}

int class_of(int64_t sample) {
  return int(sample % kClasses);
}

// Samples first … last − 1 of a split, one after the other.
void render(uint64_t key, int side, int64_t first, int64_t last, uint8_t* images) {
  Canvas canvas(side);
  for (int64_t sample = first; sample < last; ++sample) {
    Draws draws(key, uint64_t(sample));
    canvas.clear();
    draw_digit(canvas, draws, class_of(sample), float(side));
    disturb(canvas, draws, float(side));
    develop(canvas, draws, images);
    images += side * side;
  }
}

// A split. What plans or looks at a few samples does not wait for all of them: they are drawn, and kept, once an eighth
// as many have been asked for.
class Glyphs final : public Source {
 public:
  Glyphs(const SourceSpec& spec, int side, int64_t size)
      : key_(random_key(spec.seed, hash_name(spec.split == "train" ? "glyphs train" : "glyphs test"))),
        side_(side),
        images_(size_t(size) * size_t(side) * size_t(side)) {
    std::vector<int32_t> labels(static_cast<size_t>(size));
    for (int64_t sample = 0; sample < size; ++sample) labels[size_t(sample)] = class_of(sample);
    samples_ = memory_source({field_array("image", {1, side, side}, std::span<const uint8_t>(images_)),
                              owned_array("label", {}, std::move(labels), kClasses)},
                             spec.label());
  }

  std::vector<Field> fields() const override { return samples_->fields(); }
  int64_t size() const override { return samples_->size(); }
  std::string describe() const override { return samples_->describe(); }

  void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
    const auto count = int64_t(samples.size());
    if (fields[0] == nullptr) return samples_->fill(samples, fields);
    if (asked_for_.fetch_add(count) + count > size() / 8) {
      draw();
      return samples_->fill(samples, fields);
    }
    samples_->fill(samples, std::array<std::byte*, 2>{nullptr, fields[1]});
    auto* pixels = reinterpret_cast<uint8_t*>(fields[0]);
    for (const SampleRef& sample : samples) {
      render(key_, side_, sample.index, sample.index + 1, pixels);
      pixels += side_ * side_;
    }
  }
  uint32_t checksum() const override {
    draw();
    return samples_->checksum();
  }

 private:
  void draw() const {
    std::call_once(drawn_, [this] {
      const int64_t parts = std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, 16);
      in_threads(size_t(parts), size_t(parts), [&](size_t place) {
        const auto part = int64_t(place);
        const int64_t first = size() * part / parts, last = size() * (part + 1) / parts;
        render(key_, side_, first, last, images_.data() + first * side_ * side_);
      });
      asked_for_ = size();  // a checksum draws all of them, too
    });
  }

  uint64_t key_;
  int side_;
  mutable std::atomic<int64_t> asked_for_ = 0;
  mutable std::vector<uint8_t> images_;
  mutable std::once_flag drawn_;
  std::unique_ptr<Source> samples_;  // over images_
};

std::unique_ptr<Source> open_glyphs(const SourceSpec& spec) {
  const int64_t train_size = spec.integer("train", 20000, 1, 10'000'000);
  const int64_t test_size = spec.integer("test", 4000, 1, 10'000'000);
  const int side = int(spec.integer("size", 28, 16, 256));
  return std::make_unique<Glyphs>(spec, side, spec.split == "train" ? train_size : test_size);
}

}  // namespace

DescribedScheme glyphs_scheme() {
  return described({.name = "glyphs", .open = open_glyphs},
                   {.text = "generated digits, distorted and noisy",
                    .more = "They need no files and are made from the run's seed, white on black, in ten classes.",
                    .options = {{"train", "N", "digits to train on", "20000"},
                                {"test", "N", "digits to validate on", "4000"},
                                {"size", "PIXELS", "width and height of each, 16 to 256", "28"}},
                    .example = "glyphs:?train=6400&test=1000"});
}

}  // namespace arbalest
