// SPDX-License-Identifier: Apache-2.0
#include "executor/session/shared_resources.h"

#include <algorithm>
#include <chrono>

#include "executor/run/binding.h"

namespace arbalest {
namespace {

constexpr int kMostIssuingThreads = 4;
// Shorter than of a run by itself: while one plan has nothing to issue, others have.
constexpr std::chrono::microseconds kPatience{20};

}  // namespace

SharedResources::SharedResources(int at_once, int threads, bool gpus)
    : at_once_(at_once),
      threads_(std::make_shared<ExecutorThreads>(threads, std::clamp(at_once, 2, kMostIssuingThreads),
                                                 gpus ? kPatience : std::chrono::microseconds{0})),
      devices_(make_device_cache()) {}

std::shared_ptr<const Source> SharedResources::source(const std::string& name,
                                                      const std::function<std::shared_ptr<const Source>()>& make) {
  const std::scoped_lock lock(opening_);
  std::shared_ptr<const Source>& source = sources_[name];
  if (!source) source = make();
  return source;
}

SampleStores SharedResources::samples(const std::string& name, const std::function<SampleStores()>& make) {
  const std::scoped_lock lock(opening_);
  const auto found = samples_.find(name);
  return found != samples_.end() ? found->second : samples_.emplace(name, make()).first->second;
}

}  // namespace arbalest
