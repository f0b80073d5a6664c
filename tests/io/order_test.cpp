// SPDX-License-Identifier: Apache-2.0

// The order of data: a permutation an epoch, uniform, a function of (seed, epoch, position) alone.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "base/error.h"
#include "io/sources/data_order.h"
#include "tests/io/test_folder.h"

using namespace arbalest;

namespace order_test {
namespace {

std::vector<int64_t> epoch_of(const DataOrder& order, uint64_t epoch) {
  std::vector<int64_t> samples(size_t(order.samples()));
  order.batch(epoch, 0, samples);
  return samples;
}

bool is_permutation_of_all(std::vector<int64_t> samples) {
  std::sort(samples.begin(), samples.end());
  for (size_t i = 0; i < samples.size(); ++i)
    if (samples[i] != int64_t(i)) return false;
  return true;
}

// χ² of counts against equal expectations, in standard deviations from its mean (df = cells − 1).
double chi_square_deviation(const std::vector<int64_t>& counts) {
  const double total = double(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
  const double expected = total / double(counts.size()), freedom = double(counts.size() - 1);
  double chi = 0;
  for (const int64_t count : counts) chi += (double(count) - expected) * (double(count) - expected) / expected;
  return (chi - freedom) / std::sqrt(2 * freedom);
}

}  // namespace

TEST_CASE("data order: every epoch is a permutation, whatever the number of samples") {
  for (const int64_t samples : {1, 2, 3, 5, 7, 10, 63, 64, 65, 100, 255, 256, 257, 1000, 1023, 4096, 4097, 60000})
    for (const uint64_t seed : {0ull, 1ull, 0xffffffffffffffffull})
      for (const uint64_t epoch : {0ull, 1ull, 7ull, 1ull << 40}) {
        CAPTURE(samples);
        CAPTURE(epoch);
        CHECK(is_permutation_of_all(epoch_of(DataOrder(seed, samples, true), epoch)));
      }
}

TEST_CASE("data order: epochs and seeds differ, and the same ones agree") {
  const DataOrder order(3, 1000, true);
  CHECK(epoch_of(order, 4) == epoch_of(DataOrder(3, 1000, true), 4));
  const auto agreement = [](const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
    int same = 0;
    for (size_t i = 0; i < a.size(); ++i) same += a[i] == b[i];
    return same;
  };
  std::vector<int64_t> identity(1000);
  std::iota(identity.begin(), identity.end(), 0);
  CHECK(agreement(epoch_of(order, 0), identity) < 10);  // 1 is expected
  CHECK(agreement(epoch_of(order, 0), epoch_of(order, 1)) < 10);
  CHECK(agreement(epoch_of(order, 0), epoch_of(DataOrder(4, 1000, true), 0)) < 10);
}

TEST_CASE("data order: fixed for all time") {
  // A change of these numbers changes every training run that has a seed.
  std::vector<int64_t> first(6);
  DataOrder(1, 60000, true).batch(0, 0, first);
  CHECK(first == std::vector<int64_t>{49275, 8100, 10884, 14908, 18303, 5597});
}

TEST_CASE("data order: each sample is as likely at each position") {
  for (const int64_t samples : {10, 37, 200}) {
    const int64_t epochs = 4000;
    const DataOrder order(11, samples, true);
    std::vector<int64_t> counts(size_t(samples * samples));
    for (int64_t epoch = 0; epoch < epochs; ++epoch) {
      const std::vector<int64_t> all = epoch_of(order, uint64_t(epoch));
      for (int64_t position = 0; position < samples; ++position)
        ++counts[size_t(position * samples + all[size_t(position)])];
    }
    CAPTURE(samples);
    CHECK(std::abs(chi_square_deviation(counts)) < 5);
  }
}

TEST_CASE("data order: all permutations of a few samples are equally likely") {
  std::map<std::vector<int64_t>, int64_t> seen;
  const DataOrder order(5, 5, true);
  for (uint64_t epoch = 0; epoch < 24000; ++epoch) ++seen[epoch_of(order, epoch)];
  std::vector<int64_t> counts;
  for (const auto& [permutation, count] : seen) counts.push_back(count);
  CHECK(counts.size() == 120);
  CHECK(std::abs(chi_square_deviation(counts)) < 5);
}

TEST_CASE("data order: where a sample goes says nothing of where its neighbour goes") {
  const int64_t samples = 60000, cells = 50;
  std::vector<int64_t> differences(size_t(cells), 0), starts(size_t(cells), 0);
  for (uint64_t epoch = 0; epoch < 5; ++epoch) {
    const std::vector<int64_t> all = epoch_of(DataOrder(2, samples, true), epoch);
    for (size_t i = 0; i + 1 < all.size(); ++i)
      ++differences[size_t((all[i + 1] - all[i] + samples) % samples * cells / samples)];
    for (size_t i = 0; i < 6000; ++i) ++starts[size_t(all[i] * cells / samples)];
  }
  CHECK(std::abs(chi_square_deviation(differences)) < 5);
  CHECK(chi_square_deviation(starts) < 5);
}

TEST_CASE("data order: batches are stretches of the epoch, and learners of a round take turns") {
  const DataOrder order(9, 1000, true);
  const std::vector<int64_t> all = epoch_of(order, 2);
  const int64_t learners = 3, batch = 32, rounds = rounds_per_epoch(1000, learners, batch);
  CHECK(rounds == 10);
  std::vector<int64_t> out(size_t(batch), -1);
  int64_t position = 0;
  for (int64_t round = 0; round < rounds; ++round)
    for (int64_t learner = 0; learner < learners; ++learner, position += batch) {
      CHECK(order.batch(2, batch_number(round, learner, learners), out) == batch);
      CHECK(std::equal(out.begin(), out.end(), all.begin() + position));
      CHECK(order.sample(2, position + 5) == out[5]);
    }
}

TEST_CASE("data order: in blocks too every epoch is a permutation, whatever the remainders") {
  const auto check = [](int64_t samples, int64_t block) {
    CAPTURE(samples);
    CAPTURE(block);
    const DataOrder order(7, samples, true, block);
    for (const uint64_t epoch : {0ull, 5ull}) {
      const std::vector<int64_t> all = epoch_of(order, epoch);
      REQUIRE(is_permutation_of_all(all));
      for (const int64_t position : {int64_t{0}, samples / 2, samples - 1})
        REQUIRE(order.sample(epoch, position) == all[size_t(position)]);
    }
    std::vector<int64_t> identity(static_cast<size_t>(samples));
    std::iota(identity.begin(), identity.end(), 0);
    REQUIRE(epoch_of(DataOrder(7, samples, false, block), 1) == identity);
  };
  for (int64_t samples = 1; samples <= 130; ++samples)
    for (const int64_t block : {2, 3, 4, 5, 7, 8, 64, 129, 130, 1000}) check(samples, block);
  for (const int64_t samples : {1000, 1023, 1024, 1025, 4096, 10007})
    for (const int64_t block : {2, 16, 63, 64, 65, 255, 1024}) check(samples, block);
}

TEST_CASE("data order: a window has the samples of sixteen blocks") {
  constexpr int64_t kBlock = 10, kSamples = 16 * kBlock * 20 + 7;
  const DataOrder order(3, kSamples, true, kBlock);
  std::set<std::vector<int64_t>> seen;
  std::set<int64_t> places;  // of the short block
  for (uint64_t epoch = 0; epoch < 30; ++epoch) {
    const std::vector<int64_t> all = epoch_of(order, epoch);
    seen.insert(all);
    std::map<int64_t, std::pair<int64_t, int64_t>> span_of;  // of each block's positions
    for (int64_t position = 0; position < kSamples; ++position) {
      const int64_t block = all[size_t(position)] / kBlock;
      span_of.try_emplace(block, position, position).first->second.second = position;
    }
    for (const auto& [block, span] : span_of) CHECK(span.second - span.first < DataOrder::kWindow * kBlock);
    places.insert(span_of.at(kSamples / kBlock).first / (DataOrder::kWindow * kBlock));
  }
  CHECK(seen.size() == 30);
  CHECK(places.size() > 8);
}

TEST_CASE("data order: in blocks each sample is as likely at each position") {
  constexpr int64_t kSamples = 54, kBlock = 3, kEpochs = 20000;  // two windows
  const DataOrder order(11, kSamples, true, kBlock);
  std::vector<int64_t> counts(size_t(kSamples * kSamples));
  for (int64_t epoch = 0; epoch < kEpochs; ++epoch) {
    const std::vector<int64_t> all = epoch_of(order, uint64_t(epoch));
    for (int64_t position = 0; position < kSamples; ++position)
      ++counts[size_t(position * kSamples + all[size_t(position)])];
  }
  CHECK(std::abs(chi_square_deviation(counts)) < 5);
}

TEST_CASE("data order: blocks are announced before they are read") {
  for (const bool shuffle : {false, true})
    for (const int64_t samples : {5, 160, 161, 1000, 5000})
      for (const int64_t batch : {1, 7, 64, 400}) {
        CAPTURE(samples);
        CAPTURE(batch);
        const DataOrder order(3, samples, shuffle, 10);
        std::set<int64_t> told;
        int64_t tellings = 0, unexpected = 0;
        std::vector<int64_t> out(static_cast<size_t>(batch));
        for (uint64_t epoch = 0; epoch < 3; ++epoch)
          for (int64_t first = 0; first < samples; first += batch) {
            const std::vector<int64_t> ahead = order.blocks_ahead(epoch, first, batch);
            told.insert(ahead.begin(), ahead.end());
            tellings += int64_t(ahead.size());
            const int64_t valid = order.range(epoch, first, first, out);
            for (int64_t i = 0; i < valid; ++i) unexpected += !told.contains(out[size_t(i)] / 10);
          }
        CHECK(unexpected == 0);
        const int64_t blocks = (samples + 9) / 10;
        CHECK(tellings == 3 * (blocks + std::min(blocks, DataOrder::kWindow)));
        CHECK(*told.rbegin() == blocks - 1);
      }
  CHECK(DataOrder(3, 1000, true).blocks_ahead(0, 0, 1000).empty());
  CHECK(DataOrder(3, 1000, true, 10).blocks_ahead(0, 1, 100).empty());
}

TEST_CASE("data order: validation goes in order and pads its last batch with its samples in turn") {
  const DataOrder order(9, 10, false);
  std::vector<int64_t> out(4);
  CHECK(validation_batches(10, 4) == 3);
  CHECK(validation_batches(8, 4) == 2);
  CHECK(order.batch(0, 0, out) == 4);
  CHECK(out == std::vector<int64_t>{0, 1, 2, 3});
  CHECK(order.batch(5, 2, out) == 2);
  CHECK(out == std::vector<int64_t>{8, 9, 8, 9});
  CHECK(order.batch(0, 3, out) == 0);
  CHECK(out == std::vector<int64_t>{9, 9, 9, 9});
  out.resize(3);  // the second part of a batch of 6
  CHECK(order.range(0, 6, 9, out) == 1);
  CHECK(out == std::vector<int64_t>{9, 6, 7});
}

TEST_CASE("data order: any thread may ask at any time") {
  const DataOrder order(1, 5000, true);
  const std::vector<int64_t> all = epoch_of(order, 3);
  std::vector<int64_t> asked(5000);
  {
    std::vector<std::jthread> threads;
    for (int64_t t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        for (int64_t i = t; i < 5000; i += 4) asked[size_t(i)] = order.sample(3, i);
      });
  }
  CHECK(asked == all);
}

TEST_CASE("data order: too few samples") {
  check_parts(message_of<GraphError>([] { rounds_per_epoch(100, 4, 32); }),
              {"found 100 samples", "at least 128", "4 learners"});
  check_parts(message_of<GraphError>([] { rounds_per_epoch(100, 0, 32); }), {"found 0 learners"});
  check_parts(message_of<GraphError>([] { DataOrder(1, 0, true); }), {"found 0 samples"});
  CHECK(rounds_per_epoch(128, 4, 32) == 1);
}

}  // namespace order_test
