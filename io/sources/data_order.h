#pragma once
// The order of data: which sample is where in an epoch. A function of (seed, epoch, position) alone: nothing to save,
// nothing allocated, and any thread may ask. k learners, batch b each: round i takes batches i·k … i·k + k − 1, learner
// j the j-th.

#include <cstdint>
#include <span>

namespace arbalest {

class DataOrder {
 public:
  // With `shuffle`, every epoch has its own permutation of the samples; without, the order is 0, 1, 2, … (validation).
  // Throws GraphError where there are no samples.
  DataOrder(uint64_t seed, int64_t samples, bool shuffle);

  int64_t samples() const { return samples_; }

  // The sample at a position (0 … samples − 1) of an epoch.
  int64_t sample(uint64_t epoch, int64_t position) const;

  // The samples at positions `first` and on. Positions behind the last one are padding, filled with the sample at the
  // last position. Returns how many are not padding.
  int64_t range(uint64_t epoch, int64_t first, std::span<int64_t> out) const;

  // Batch `number` of an epoch, `out.size()` samples: positions number · out.size() and on.
  int64_t batch(uint64_t epoch, int64_t number, std::span<int64_t> out) const {
    return range(epoch, number * int64_t(out.size()), out);
  }

 private:
  struct RoundKeys;
  RoundKeys round_keys(uint64_t epoch) const;
  int64_t permute(const RoundKeys& keys, int64_t position) const;

  uint64_t key_;
  int64_t samples_;
  bool shuffle_;
  int low_bits_ = 0, high_bits_ = 0;  // the two halves of a number in the cipher's domain
};

// ⌊samples ÷ (learners · batch)⌋: the rounds of an epoch; the remainder is dropped. Throws GraphError where there is
// not one.
int64_t rounds_per_epoch(int64_t samples, int64_t learners, int64_t batch);

// ⌈samples ÷ batch⌉: validation counts every sample once.
inline int64_t validation_batches(int64_t samples, int64_t batch) {
  return (samples + batch - 1) / batch;
}

// The number in its epoch of the batch that a learner takes in a round.
inline int64_t batch_number(int64_t round, int64_t learner, int64_t learners) {
  return round * learners + learner;
}

}  // namespace arbalest
