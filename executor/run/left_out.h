// SPDX-License-Identifier: Apache-2.0
#pragma once
// Samples that passes over a split leave out, since they cannot be read: nothing is measured or predicted of them.

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace arbalest {

// The samples left out by the passes of one loop. Any thread may call.
class LeftOut {
 public:
  // Records the sample at this position of the split as left out of a pass.
  void add(uint64_t pass, int64_t position);
  // The positions among first … first + count − 1 that the pass leaves out, ascending.
  std::vector<int64_t> among(uint64_t pass, int64_t first, int64_t count) const;
  // Records that one of `parts` parts of a batch has been read. Returns true for the last one: then all samples that
  // the batch leaves out are known.
  bool part_is_last(uint64_t pass, int64_t batch, int parts);
  // Discards the positions of a pass that has ended.
  void forget(uint64_t pass);

 private:
  using Place = std::pair<uint64_t, int64_t>;  // a pass and a position, or a batch, of it

  mutable std::mutex mutex_;
  std::set<Place> positions_;
  std::map<Place, int> parts_read_;  // of batches that are not complete
};

}  // namespace arbalest
