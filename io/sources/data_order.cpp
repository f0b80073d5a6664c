#include "io/sources/data_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cassert>

#include "graph/checked.h"
#include "graph/error.h"
#include "graph/random.h"

namespace arbalest {

// The permutation is a block cipher on [0, 2^bits) with 2^bits ≥ samples: a Feistel network, which is a bijection
// whatever its round function. A number that falls outside [0, samples) is enciphered again until it falls inside
// (cycle walking): it does, as its own cycle leads back to the position it started from, and the result is a bijection
// on [0, samples).

namespace {

constexpr int kRounds = 8;

// Halves of few bits mix poorly: small sets walk in a larger domain instead.
constexpr int kLeastBits = 8;

// MurmurHash3's finaliser over 64 bits: each bit of the input moves each bit of the output with probability ½.
uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdull;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53ull;
  return x ^ (x >> 33);
}

}  // namespace

struct DataOrder::RoundKeys {
  uint64_t key[kRounds];
};

DataOrder::DataOrder(uint64_t seed, int64_t samples, bool shuffle)
    : key_(random_key(seed, hash_name("data order"))), samples_(samples), shuffle_(shuffle) {
  if (samples < 1) throw GraphError(fmt::format("order of data: found {} samples, expected at least 1", samples));
  const int bits = std::max(kLeastBits, int(std::bit_width(uint64_t(samples - 1))));
  low_bits_ = bits / 2;
  high_bits_ = bits - low_bits_;
}

DataOrder::RoundKeys DataOrder::round_keys(uint64_t epoch) const {
  RoundKeys keys;
  for (int i = 0; i < kRounds; i += 2) {
    const Random4 words = philox(key_, epoch, uint64_t(i));
    keys.key[i] = uint64_t(words.word[1]) << 32 | words.word[0];
    keys.key[i + 1] = uint64_t(words.word[3]) << 32 | words.word[2];
  }
  return keys;
}

int64_t DataOrder::permute(const RoundKeys& keys, int64_t position) const {
  const uint64_t low_mask = (uint64_t{1} << low_bits_) - 1, high_mask = (uint64_t{1} << high_bits_) - 1;
  uint64_t number = uint64_t(position);
  do {
    // Halves of unequal width keep their places, so that rounds change one and the other in turn.
    uint64_t low = number & low_mask, high = number >> low_bits_;
    for (int i = 0; i < kRounds; i += 2) {
      high ^= mix(low ^ keys.key[i]) & high_mask;
      low ^= mix(high ^ keys.key[i + 1]) & low_mask;
    }
    number = high << low_bits_ | low;
  } while (number >= uint64_t(samples_));
  return int64_t(number);
}

int64_t DataOrder::sample(uint64_t epoch, int64_t position) const {
  assert(position >= 0 && position < samples_);
  return shuffle_ ? permute(round_keys(epoch), position) : position;
}

int64_t DataOrder::range(uint64_t epoch, int64_t first, std::span<int64_t> out) const {
  const int64_t size = int64_t(out.size());
  const RoundKeys keys = round_keys(epoch);
  for (int64_t i = 0; i < size; ++i) {
    const int64_t position = std::min(first + i, samples_ - 1);
    out[size_t(i)] = shuffle_ ? permute(keys, position) : position;
  }
  return std::clamp(samples_ - first, int64_t{0}, size);
}

int64_t rounds_per_epoch(int64_t samples, int64_t learners, int64_t batch) {
  if (learners < 1 || batch < 1)
    throw GraphError(
        fmt::format("order of data: found {} learners with batch {}, expected at least 1 of each", learners, batch));
  const int64_t round = checked_multiply(learners, batch, "order of data: samples of a round");
  if (samples < round)
    throw GraphError(
        fmt::format("order of data: found {} samples, expected at least {}: {} learner{} with batch {} each need{} "
                    "that many for one "
                    "round",
                    samples, round, learners, learners == 1 ? "" : "s", batch, learners == 1 ? "s" : ""));
  return samples / round;
}

}  // namespace arbalest
