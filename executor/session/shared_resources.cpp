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

template <typename Value>
std::shared_ptr<const Value> SharedResources::find(Recent<Value>& recent, const std::string& name,
                                                   const std::function<std::shared_ptr<const Value>()>& make) {
  const std::scoped_lock lock(opening_);
  std::weak_ptr<const Value>& known = recent.all[name];
  std::shared_ptr<const Value> value = known.lock();
  if (!value) known = value = make();
  std::erase(recent.last, value);
  recent.last.push_front(value);
  // Both splits of as many runs as there are, so that a run finds what the one before it had.
  while (recent.last.size() > 2 * size_t(at_once_)) recent.last.pop_back();
  return value;
}

std::shared_ptr<const Source> SharedResources::source(const std::string& name,
                                                      const std::function<std::shared_ptr<const Source>()>& make) {
  return find(sources_, name, make);
}

std::shared_ptr<const SampleStores> SharedResources::samples(const std::string& name,
                                                             const std::function<SampleStores()>& make) {
  return find<SampleStores>(samples_, name, [&] { return std::make_shared<const SampleStores>(make()); });
}

}  // namespace arbalest
