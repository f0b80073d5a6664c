// SPDX-License-Identifier: Apache-2.0
#include "io/sources/bad_samples.h"

#include <fmt/format.h>

#include "base/error.h"
#include "io/sources/source.h"

namespace arbalest {

std::string fault_of_sample(const Source& source, int64_t index, const std::string& error) {
  const std::string file = source.name(index) + ": ";
  return error.starts_with(file) ? error.substr(file.size()) : error;
}

void BadSamples::add(const std::string& place, const std::string& fault, const std::string& number) {
  const std::scoped_lock lock(mutex_);
  if (bad_.contains(place)) return;
  if (before_ + int64_t(bad_.size()) >= most_) {
    const std::string which = number.empty() ? "" : fmt::format(" ({})", number);
    throw RunError(fmt::format("{}: {}{}; {}", place, fault, which,
                               most_ > 0 ? fmt::format("--skip-bad {} is used up, a greater number goes on", most_)
                                         : "--skip-bad N goes on over up to N samples that cannot be read"));
  }
  bad_.insert(place);
  skipped_(place, fault);
}

}  // namespace arbalest
