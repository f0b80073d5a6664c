// SPDX-License-Identifier: Apache-2.0
#pragma once
// The order of data: which sample is where in an epoch. A function of (seed, epoch, position) alone: nothing to save,
// nothing allocated, and any thread may ask. With k learners of batch b, round i takes batches i·k … i·k + k − 1,
// learner j the j-th.

#include <cstdint>
#include <span>
#include <vector>

namespace arbalest {

class DataOrder {
 public:
  // With `shuffle`, every epoch has its own permutation of the samples; without, the order is 0, 1, 2, … (validation).
  // Throws GraphError if there are no samples.
  //
  // `block` neighbours that are best read together (Source::block()) stay near each other: blocks are permuted, and
  // then the samples within each window of kWindow blocks. A window is what is read at random and has to be in memory,
  // with the next one on its way there: of blocks of 8 MiB 256 MiB. A batch has samples of up to kWindow blocks, from
  // all over the data set.
  DataOrder(uint64_t seed, int64_t samples, bool shuffle, int64_t block = 1);

  static constexpr int64_t kWindow = 16;

  int64_t samples() const { return samples_; }

  // The sample at a position (0 … samples − 1) of an epoch.
  int64_t sample(uint64_t epoch, int64_t position) const;

  // The samples at positions `first` and on. Positions after the last one are padding, which repeats the samples from
  // position `batch`, the first of the batch, in turn: a batch of 3 valid samples is 0 1 2 0 1 2 0. Batches after the
  // last one repeat its last sample. Returns how many are not padding.
  int64_t range(uint64_t epoch, int64_t batch, int64_t first, std::span<int64_t> out) const;

  // Batch `number` of an epoch, `out.size()` samples: positions number · out.size() and on.
  int64_t batch(uint64_t epoch, int64_t number, std::span<int64_t> out) const {
    const int64_t first = number * int64_t(out.size());
    return range(epoch, first, first, out);
  }

  // The blocks (block b has samples b · block and on) that are read soon after those at `count` positions from `first`
  // on. If a window begins there, these are those of the next one, and at the start of an epoch those of the first as
  // well. None if blocks are of one sample.
  std::vector<int64_t> blocks_ahead(uint64_t epoch, int64_t first, int64_t count) const;

 private:
  // Blocks as an epoch has them one after the other: the short one is drawn a slot, the others are permuted.
  struct Slots;
  Slots slots_of(uint64_t epoch) const;
  int64_t sample_in_blocks(const Slots& slots, uint64_t epoch, int64_t position) const;

  uint64_t key_, short_key_, window_key_;
  int64_t samples_;
  bool shuffle_;
  int64_t block_, blocks_, missing_;  // samples of a block, blocks, and what the last one is short of
};

// ⌊samples ÷ (learners · batch)⌋: the rounds of an epoch; the remainder is dropped. Throws GraphError if there is
// not one.
int64_t rounds_per_epoch(int64_t samples, int64_t learners, int64_t batch);

// The batch from `least` to `most` of which an epoch leaves out the fewest samples; of equal ones the largest.
int64_t whole_batch(int64_t samples, int64_t least, int64_t most);

// ⌈samples ÷ batch⌉: validation counts every sample once.
inline int64_t validation_batches(int64_t samples, int64_t batch) {
  return (samples + batch - 1) / batch;
}

// The number in its epoch of the batch that a learner takes in a round.
inline int64_t batch_number(int64_t round, int64_t learner, int64_t learners) {
  return round * learners + learner;
}

}  // namespace arbalest
