#include "executor/run/bad_samples.h"

#include <fmt/format.h>

#include "graph/error.h"

namespace arbalest {

void BadSamples::add(const std::string& place, const std::string& fault) {
  const std::scoped_lock lock(mutex_);
  if (bad_.contains(place)) return;
  if (int64_t(bad_.size()) >= most_) {
    const std::string others = most_ > 0 ? fmt::format("; --skip-bad {} is used up", most_) : "";
    throw RunError(fmt::format("{}: {}{}", place, fault, others));
  }
  bad_.insert(place);
  skipped_(place, fault);
}

}  // namespace arbalest
