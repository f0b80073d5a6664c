// SPDX-License-Identifier: Apache-2.0
#include "io/sources/bad_samples.h"

#include <fmt/format.h>

#include <utility>

#include "base/error.h"
#include "base/setting.h"
#include "io/sources/source.h"

namespace arbalest {

std::string fault_of_sample(const Source& source, int64_t index, const std::string& error) {
  const std::string file = source.name(index) + ": ";
  return error.starts_with(file) ? error.substr(file.size()) : error;
}

// Returns false for a sample that is known already. Called with the mutex held.
bool BadSamples::count(const BadSample& sample) {
  if (bad_.contains(sample.place)) return false;
  if (before_ + int64_t(bad_.size()) >= most_) {
    const std::string which = sample.number.empty() ? "" : fmt::format(" ({})", sample.number);
    throw RunError(fmt::format(
        "{}: {}{}; {}", sample.place, sample.fault, which,
        most_ > 0 ? set_to(SettingKey::SkipBad, std::to_string(most_)) + " is used up, a greater number goes on"
                  : set_to(SettingKey::SkipBad, "N") + " goes on over up to N samples that cannot be read"));
  }
  bad_.insert(sample.place);
  skipped_(sample.place, sample.fault);
  return true;
}

void BadSamples::add(const BadSample& sample) {
  const std::scoped_lock lock(mutex_);
  if (count(sample)) found_.push_back(sample);
}

std::vector<BadSample> BadSamples::take_found() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(found_, {});
}

void BadSamples::add_others(const BadSample& sample) {
  const std::scoped_lock lock(mutex_);
  count(sample);
}

}  // namespace arbalest
