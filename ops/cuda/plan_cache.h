// SPDX-License-Identifier: Apache-2.0
#pragma once
// A cache of plans, each made once, by the thread that asks first.

#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace arbalest {

// Plans by key. Threads that ask for a plan that is being made wait; those that ask for another one do not.
template <typename Plan>
class PlanCache {
 public:
  // Passes on exceptions of `make`, and keeps no plan then.
  template <typename Make>
  std::shared_ptr<const Plan> find(const std::string& key, const Make& make) {
    std::shared_ptr<Entry> entry;
    {
      const std::scoped_lock lock(mutex_);
      std::shared_ptr<Entry>& known = entries_[key];
      if (!known) known = std::make_shared<Entry>();
      entry = known;
    }
    const std::scoped_lock lock(entry->mutex);
    if (!entry->made) entry->plan = make();
    entry->made = true;
    return entry->plan;
  }

 private:
  struct Entry {
    std::mutex mutex;  // held while the plan is made
    bool made = false;
    std::shared_ptr<const Plan> plan;
  };
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Entry>> entries_;
};

}  // namespace arbalest
