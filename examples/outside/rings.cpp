// SPDX-License-Identifier: Apache-2.0

// A source of one's own: points on two rings around the origin, and on which of them each lies.

#include <arbalest/arbalest.h>

#include <cmath>
#include <cstring>
#include <numbers>

#include "base/random.h"
#include "own.h"

using namespace arbalest;

namespace {

class Rings final : public Source {
 public:
  explicit Rings(const SourceSpec& spec)
      : label_(spec.label()),
        size_(spec.integer("size", 1024, 1, 1 << 20)),
        key_(random_key(spec.seed, hash_name("rings " + spec.split))) {}

  std::vector<Field> fields() const override {
    return {{.name = "point", .dtype = DataType::Float32, .shape = {2}},
            {.name = "ring", .dtype = DataType::Int32, .shape = {}, .classes = 2}};
  }

  int64_t size() const override { return size_; }

  // A sample is the same on any thread: its random numbers are a function of the seed, the split and the index.
  void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
    for (size_t i = 0; i < samples.size(); ++i) {
      const Random4 random = philox(key_, 0, uint64_t(samples[i].index));
      const int32_t ring = int32_t(below(random.word[0], 2));
      const float angle = 2 * std::numbers::pi_v<float> * uniform(random.word[1]);
      const float radius = float(1 + ring) + 0.3f * (uniform(random.word[2]) - 0.5f);
      const float point[2] = {radius * std::cos(angle), radius * std::sin(angle)};
      if (fields[0]) std::memcpy(fields[0] + i * sizeof point, point, sizeof point);
      if (fields[1]) std::memcpy(fields[1] + i * sizeof ring, &ring, sizeof ring);
    }
  }

  std::string describe() const override { return label_ + ": " + std::to_string(size_) + " points on two rings"; }

 private:
  std::string label_;
  int64_t size_;
  uint64_t key_;
};

}  // namespace

void register_rings() {
  register_source({.name = "rings", .options = {"size"}, .open = [](const SourceSpec& spec) {
                     return std::make_unique<Rings>(spec);
                   }});
}
