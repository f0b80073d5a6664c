// SPDX-License-Identifier: Apache-2.0
#pragma once
// Resources that runs of one process share if several train at the same time: threads, the devices' libraries and
// kernels, data sets, and samples that are prepared once.

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "executor/session/sample_stores.h"
#include "executor/threads/executor_threads.h"
#include "io/sources/source.h"

namespace arbalest {

struct DeviceCache;  // executor/devices/cuda_cache.h

class SharedResources {
 public:
  // For `at_once` runs on each device. `threads`: of all of them, for host tasks; `gpus`: some devices are GPUs. Throws
  // RunError if the system refuses a thread.
  SharedResources(int at_once, int threads, bool gpus);

  int at_once() const { return at_once_; }
  // Runs that are set up from here on have kernels for so many at once on each device.
  void expect(int at_once) { at_once_ = at_once; }
  const std::shared_ptr<ExecutorThreads>& threads() const { return threads_; }
  const std::shared_ptr<DeviceCache>& devices() const { return devices_; }
  // Held while a run makes kernels and allocates: kernels are timed then, and libraries' handles are shared.
  std::mutex& set_up() { return set_up_; }

  // Each calls `make` the first time and returns what that returned, as long as a run uses it or it is among those that
  // were asked for last. The name states everything that the result depends on.
  std::shared_ptr<const Source> source(const std::string& name,
                                       const std::function<std::shared_ptr<const Source>()>& make);
  std::shared_ptr<const SampleStores> samples(const std::string& name, const std::function<SampleStores()>& make);

 private:
  std::atomic<int> at_once_;
  const std::shared_ptr<ExecutorThreads> threads_;
  const std::shared_ptr<DeviceCache> devices_;
  std::mutex set_up_;
  std::mutex opening_;  // of what follows
  template <typename Value>
  struct Recent {
    std::map<std::string, std::weak_ptr<const Value>> all;
    std::deque<std::shared_ptr<const Value>> last;  // asked for last, the latest in front
  };
  template <typename Value>
  std::shared_ptr<const Value> find(Recent<Value>& recent, const std::string& name,
                                    const std::function<std::shared_ptr<const Value>()>& make);
  Recent<Source> sources_;
  Recent<SampleStores> samples_;
};

}  // namespace arbalest
