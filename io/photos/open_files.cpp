// SPDX-License-Identifier: Apache-2.0
#include "io/photos/open_files.h"

namespace arbalest {

std::shared_ptr<const RandomAccessFile> OpenFiles::file(size_t number) const {
  {
    const std::scoped_lock lock(mutex_);
    if (const auto found = open_.find(number); found != open_.end()) return found->second;
  }
  auto opened = std::make_shared<const RandomAccessFile>(paths_[number], what_);  // may take long
  const std::scoped_lock lock(mutex_);
  const auto [at, added] = open_.try_emplace(number, std::move(opened));
  if (added) order_.push_back(number);
  const auto file = at->second;
  if (order_.size() > kMost) {
    open_.erase(order_.front());
    order_.pop_front();
  }
  return file;
}

}  // namespace arbalest
