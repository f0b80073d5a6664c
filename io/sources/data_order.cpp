// SPDX-License-Identifier: Apache-2.0
#include "io/sources/data_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cassert>

#include "base/checked.h"
#include "base/error.h"
#include "base/random.h"

namespace arbalest {

// The permutation is a block cipher on [0, 2^bits) with 2^bits ≥ samples: a Feistel network, which is a bijection
// whatever its round function. A number that falls outside [0, samples) is enciphered again until it falls inside
// (cycle walking). It does, as its own cycle leads back to the position it started from, and the result is a bijection
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

struct RoundKeys {
  uint64_t key[kRounds];
};

RoundKeys round_keys(uint64_t key, uint64_t epoch, uint64_t stream = 0) {
  RoundKeys keys;
  for (int i = 0; i < kRounds; i += 2) {
    const Random4 words = philox(key, epoch, stream * kRounds + uint64_t(i));
    keys.key[i] = uint64_t(words.word[1]) << 32 | words.word[0];
    keys.key[i + 1] = uint64_t(words.word[3]) << 32 | words.word[2];
  }
  return keys;
}

// A permutation of 0 … count − 1: the number at each position.
class Permutation {
 public:
  Permutation(const RoundKeys& keys, int64_t count) : keys_(keys), count_(uint64_t(count)) {
    const int bits = std::max(kLeastBits, int(std::bit_width(count_ - 1)));
    low_bits_ = bits / 2;
    high_bits_ = bits - low_bits_;
  }

  int64_t operator()(int64_t position) const {
    const uint64_t low_mask = (uint64_t{1} << low_bits_) - 1, high_mask = (uint64_t{1} << high_bits_) - 1;
    uint64_t number = uint64_t(position);
    do {
      // Halves of unequal width keep their places, so that rounds change one and the other in turn.
      uint64_t low = number & low_mask, high = number >> low_bits_;
      for (int i = 0; i < kRounds; i += 2) {
        high ^= mix(low ^ keys_.key[i]) & high_mask;
        low ^= mix(high ^ keys_.key[i + 1]) & low_mask;
      }
      number = high << low_bits_ | low;
    } while (number >= count_);
    return int64_t(number);
  }

 private:
  RoundKeys keys_;
  uint64_t count_;
  int low_bits_, high_bits_;  // the two halves of a number in the cipher's domain
};

}  // namespace

DataOrder::DataOrder(uint64_t seed, int64_t samples, bool shuffle, int64_t block)
    : key_(random_key(seed, hash_name("data order"))),
      short_key_(random_key(seed, hash_name("data order: short block"))),
      window_key_(random_key(seed, hash_name("data order: windows"))),
      samples_(samples),
      shuffle_(shuffle) {
  if (samples < 1) throw GraphError(fmt::format("order of data: found {} samples, expected at least 1", samples));
  if (block < 1) throw GraphError(fmt::format("order of data: found blocks of {} samples, expected 1 or more", block));
  block_ = std::min(block, samples);
  blocks_ = (samples + block_ - 1) / block_;
  missing_ = blocks_ * block_ - samples_;
}

struct DataOrder::Slots {
  int64_t block, missing, count;
  int64_t short_slot;  // its block is the last one; `count` if all blocks are whole
  bool shuffle;
  Permutation blocks;  // of whole ones

  int64_t start(int64_t slot) const { return slot * block - (slot > short_slot ? missing : 0); }
  int64_t at(int64_t position) const {
    return (position < start(short_slot + 1) ? position : position + missing) / block;
  }
  int64_t block_in(int64_t slot) const {
    if (!shuffle) return slot;
    return slot == short_slot ? count - 1 : blocks(slot > short_slot ? slot - 1 : slot);
  }
};

DataOrder::Slots DataOrder::slots_of(uint64_t epoch) const {
  const int64_t whole = missing_ == 0 ? blocks_ : blocks_ - 1;
  int64_t short_slot = whole;
  if (missing_ > 0 && shuffle_) {
    const Random4 words = philox(short_key_, epoch, 0);
    short_slot = int64_t((uint64_t(words.word[1]) << 32 | words.word[0]) % uint64_t(blocks_));
  }
  return {block_,     missing_, blocks_,
          short_slot, shuffle_, Permutation(round_keys(key_, epoch), std::max<int64_t>(whole, 1))};
}

int64_t DataOrder::sample_in_blocks(const Slots& slots, uint64_t epoch, int64_t position) const {
  const int64_t window = slots.at(position) / kWindow;
  const int64_t first = slots.start(window * kWindow), end = slots.start(std::min((window + 1) * kWindow, blocks_));
  const Permutation within(round_keys(window_key_, epoch, uint64_t(window)), end - first);
  const int64_t moved = first + within(position - first), slot = slots.at(moved);
  return slots.block_in(slot) * block_ + moved - slots.start(slot);
}

int64_t DataOrder::sample(uint64_t epoch, int64_t position) const {
  assert(position >= 0 && position < samples_);
  if (!shuffle_) return position;
  if (block_ > 1) return sample_in_blocks(slots_of(epoch), epoch, position);
  return Permutation(round_keys(key_, epoch), samples_)(position);
}

int64_t DataOrder::range(uint64_t epoch, int64_t batch, int64_t first, std::span<int64_t> out) const {
  const int64_t size = int64_t(out.size());
  const Slots slots = slots_of(epoch);
  const int64_t begin = std::min(batch, samples_ - 1), repeated = samples_ - begin;
  for (int64_t i = 0; i < size; ++i) {
    int64_t& sample = out[size_t(i)];
    sample = first + i < samples_ ? first + i : begin + (first + i - begin) % repeated;
    if (shuffle_) sample = block_ > 1 ? sample_in_blocks(slots, epoch, sample) : slots.blocks(sample);
  }
  return std::clamp(samples_ - first, int64_t{0}, size);
}

std::vector<int64_t> DataOrder::blocks_ahead(uint64_t epoch, int64_t first, int64_t count) const {
  std::vector<int64_t> ahead;
  if (block_ == 1) return ahead;
  const Slots slots = slots_of(epoch);
  const auto add_window = [&](const Slots& of, int64_t slot) {
    for (int64_t s = slot; s < std::min(slot + kWindow, blocks_); ++s) ahead.push_back(of.block_in(s));
  };
  if (first == 0 && count > 0) add_window(slots, 0);
  int64_t slot = slots.at(std::min(first, samples_ - 1)) / kWindow * kWindow;
  if (slots.start(slot) < first) slot += kWindow;
  for (; slot < blocks_ && slots.start(slot) < first + count; slot += kWindow) {
    if (slot + kWindow < blocks_) {
      add_window(slots, slot + kWindow);
    } else {
      add_window(slots_of(epoch + 1), 0);
    }
  }
  return ahead;
}

int64_t whole_batch(int64_t samples, int64_t least, int64_t most) {
  int64_t best = most;
  for (int64_t batch = most; batch >= least; --batch) {
    if (samples % batch < samples % best) best = batch;
  }
  return best;
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
