#pragma once
// Samples that passes over a split leave out, since they cannot be read: nothing is measured or predicted of them.

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace arbalest {

// Of the passes of one loop. Any thread may call.
class LeftOut {
 public:
  // The sample at a position of the split in a pass.
  void add(uint64_t pass, int64_t position);
  // Those of the positions first … first + count − 1 that the pass leaves out, ascending.
  std::vector<int64_t> among(uint64_t pass, int64_t first, int64_t count) const;
  // One of so many parts of a batch is read. True of the last one: what of the batch is left out is known from now on.
  bool part_is_last(uint64_t pass, int64_t batch, int parts);
  // The pass is over.
  void forget(uint64_t pass);

 private:
  using Place = std::pair<uint64_t, int64_t>;  // a pass and a position, or a batch, of it

  mutable std::mutex mutex_;
  std::set<Place> positions_;
  std::map<Place, int> parts_read_;  // of batches that are not complete
};

}  // namespace arbalest
