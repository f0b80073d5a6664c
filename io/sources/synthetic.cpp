// SPDX-License-Identifier: Apache-2.0

// synthetic: noise and arbitrary labels, to measure a step without data. Sample i is a function of (seed, split, i).

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/random.h"
#include "io/sources/schemes.h"

namespace arbalest {

namespace {

class SyntheticSource final : public Source {
 public:
  explicit SyntheticSource(const SourceSpec& spec)
      : name_(spec.label()),
        shape_(spec.image_shape("shape", {3, 32, 32})),
        classes_(spec.integer("classes", 10, 1, INT32_MAX)),
        size_(size_of(spec)),
        delay_(spec.integer("delay", 0, 0, 60'000'000)),
        key_(random_key(spec.seed, hash_name(spec.split == "train" ? "synthetic train" : "synthetic test"))) {}

  std::vector<Field> fields() const override { return image_and_label(shape_, classes_); }
  int64_t size() const override { return size_; }
  bool resident() const override { return delay_.count() == 0; }
  double microseconds_per_sample() const override { return 0; }  // the delay is that of a batch

  void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
    const auto end = std::chrono::steady_clock::now() + delay_;
    std::byte *image = fields[0], *label = fields[1];
    const auto bytes = size_t(element_count(shape_));
    for (const SampleRef& sample : samples) {
      const auto index = uint64_t(sample.index);
      if (label) {
        const auto value = int32_t(below(philox(key_, index, 0).word[0], uint32_t(classes_)));
        std::memcpy(label, &value, sizeof value);
        label += sizeof value;
      }
      for (size_t offset = 0; image && offset < bytes; offset += sizeof(Random4)) {
        const Random4 noise = philox(key_, index, 1 + offset / sizeof(Random4));
        std::memcpy(image + offset, &noise, std::min(sizeof(Random4), bytes - offset));
      }
      if (image) image += bytes;
    }
    if (delay_.count() > 0) std::this_thread::sleep_until(end);
  }

  std::string describe() const override {
    const std::string kind =
        resident() ? "noise that stays on the device" : fmt::format("noise, {} µs or more a batch", delay_.count());
    return fmt::format("{}: {} samples of {}; {}", name_, size_, to_string(fields()), kind);
  }

 private:
  // The number of samples of the split: the option `size` for training, `test` for any other.
  static int64_t size_of(const SourceSpec& spec) {
    constexpr int64_t kMost = int64_t{1} << 40;
    const int64_t size = spec.integer("size", 50000, 1, kMost);
    const int64_t test = spec.integer("test", std::min<int64_t>(size, 10000), 1, kMost);
    return spec.split == "train" ? size : test;
  }

  std::string name_;
  Shape shape_;
  int64_t classes_, size_;
  std::chrono::microseconds delay_;  // how long filling a batch takes at least
  uint64_t key_;
};

std::unique_ptr<Source> open_synthetic(const SourceSpec& spec) {
  return std::make_unique<SyntheticSource>(spec);
}

}  // namespace

DescribedScheme synthetic_scheme() {
  return described(
      {.name = "synthetic", .open = open_synthetic},
      {.text = "noise that stays on the device, for measuring",
       .more = "There is nothing to learn in it. It stands for data that is not there, as for a model that "
               "is exported.",
       .options = {{"shape", "CxHxW", "channels, height and width", "3x32x32"},
                   {"classes", "N", "of the labels", "10"},
                   {"size", "N", "samples to train on", "50000"},
                   {"test", "N", "samples to validate on", "10000, or size where that is less"},
                   {"delay", "MICROSECONDS", "batches are made anew, and each takes so long at least"}},
       .example = "synthetic:?shape=3x32x32&classes=10"});
}

}  // namespace arbalest
