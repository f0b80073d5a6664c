// SPDX-License-Identifier: Apache-2.0

// Tests sources whose neighbours are best read together: the order in which they are read, and the blocks announced to
// them before.

#include <doctest/doctest.h>

#include <map>
#include <mutex>
#include <set>

#include "executor/inference/inference.h"
#include "io/open/open_source.h"
#include "io/sources/data_order.h"
#include "tests/executor/fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace blocks_test {
namespace {

constexpr int64_t kBlock = 4;

// Digits in blocks, which record the blocks that are announced and asked for.
class Blocks final : public Source {
 public:
  Blocks(const std::string& source, const std::string& split) : digits_(open_source(source, split, 1)) {}

  std::vector<Field> fields() const override { return digits_->fields(); }
  int64_t size() const override { return digits_->size(); }
  int64_t block() const override { return kBlock; }
  std::string describe() const override { return "digits in blocks"; }
  void will_read(std::span<const int64_t> blocks) const override {
    const std::scoped_lock lock(mutex);
    told.insert(blocks.begin(), blocks.end());
  }
  void fill(std::span<const SampleRef> samples, std::span<std::byte* const> fields) const override {
    {
      const std::scoped_lock lock(mutex);
      for (const SampleRef& sample : samples) {
        if (sample.position < uint64_t(size())) at[{sample.epoch, sample.position}] = sample.index;
      }
    }
    digits_->fill(samples, fields);
  }

  mutable std::mutex mutex;
  mutable std::set<int64_t> told;
  mutable std::map<std::pair<uint64_t, uint64_t>, int64_t> at;  // the sample of each epoch and position

 private:
  const std::unique_ptr<Source> digits_;
};

}  // namespace

TEST_CASE("a source in blocks is read window by window and hears of blocks, in training, validation and inference") {
  const TinyNet net{.source = "glyphs:?train=200&test=50&size=16"};
  const auto training = std::make_shared<Blocks>(net.source, "train");
  const auto validation = std::make_shared<Blocks>(net.source, "test");
  SessionOptions options = on_cpus(2);
  options.length.epochs = 2;
  options.sources = {training, validation};
  run(tiny(net), options);

  const DataOrder order(options.numerics.seed, 200, true, kBlock);
  int64_t wrong = 0, read = 0;
  for (const auto& [place, index] : training->at) {
    wrong += order.sample(place.first, int64_t(place.second)) != index;
    read += place.first < 2;
  }
  CHECK(wrong == 0);
  CHECK(read >= 2 * 192);  // whole rounds of two batches of 8
  CHECK(training->told.size() == 50);
  wrong = 0;
  for (const auto& [place, index] : validation->at) wrong += int64_t(place.second) != index;
  CHECK(wrong == 0);
  CHECK(validation->told.size() == 13);

  const auto asked = std::make_shared<Blocks>(net.source, "test");
  SessionOptions once = on_cpus();
  once.sources.validation = asked;
  Inference(tiny(net), once, {}).run();
  CHECK(asked->told.size() == 13);
  CHECK(asked->at.size() == 50);
}

}  // namespace blocks_test
