// SPDX-License-Identifier: Apache-2.0
#include "executor/threads/issuing_threads.h"

#include "executor/devices/threads.h"

namespace arbalest {

// From the delegation on, the destructor joins what was started.
IssuingThreads::IssuingThreads(int threads, std::chrono::microseconds patience) : IssuingThreads(patience) {
  for (int i = 0; i < threads; ++i) threads_.push_back(start_thread("issuing work to devices", [this] { work(); }));
}

IssuingThreads::~IssuingThreads() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  pushed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

// No wake-up is lost: either this sees the sleeper in asleep_, or the sleeper sees the item in waiting_. Both are
// sequentially consistent, and who sees a sleeper notifies under the mutex that it falls asleep with.
void IssuingThreads::push(Issuer& by, TaskId task, int64_t instance) {
  queue_.push({&by, task, instance});
  waiting_.fetch_add(1);
  if (asleep_.load() == 0) return;
  const std::scoped_lock lock(mutex_);
  pushed_.notify_one();
}

// False once there is nothing left and nothing more to come.
bool IssuingThreads::take(Item& item) {
  for (;;) {
    const auto until = std::chrono::steady_clock::now() + patience_;
    do {
      if (queue_.try_pop(item)) {
        waiting_.fetch_sub(1);
        return true;
      }
      std::this_thread::yield();
    } while (std::chrono::steady_clock::now() < until);
    std::unique_lock lock(mutex_);
    asleep_.fetch_add(1);
    pushed_.wait(lock, [this] { return waiting_.load() > 0 || stopping_; });
    asleep_.fetch_sub(1);
    if (waiting_.load() <= 0 && stopping_) return false;
  }
}

void IssuingThreads::work() {
  for (Item item; take(item);) item.by->issue(item.task, item.instance);
}

}  // namespace arbalest
