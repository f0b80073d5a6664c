// SPDX-License-Identifier: Apache-2.0
#include "executor/run/left_out.h"

namespace arbalest {

void LeftOut::add(uint64_t pass, int64_t position) {
  const std::scoped_lock lock(mutex_);
  positions_.emplace(pass, position);
}

std::vector<int64_t> LeftOut::among(uint64_t pass, int64_t first, int64_t count) const {
  const std::scoped_lock lock(mutex_);
  std::vector<int64_t> found;
  const auto end = positions_.lower_bound({pass, first + count});
  for (auto at = positions_.lower_bound({pass, first}); at != end; ++at) found.push_back(at->second);
  return found;
}

bool LeftOut::part_is_last(uint64_t pass, int64_t batch, int parts) {
  const std::scoped_lock lock(mutex_);
  const auto at = parts_read_.try_emplace({pass, batch}, 0).first;
  if (++at->second < parts) return false;
  parts_read_.erase(at);
  return true;
}

void LeftOut::forget(uint64_t pass) {
  const std::scoped_lock lock(mutex_);
  positions_.erase(positions_.lower_bound({pass, 0}), positions_.lower_bound({pass + 1, 0}));
}

}  // namespace arbalest
