// SPDX-License-Identifier: Apache-2.0
#pragma once
// Threads that only issue. Host tasks may hold TBB's workers for long (a reader that waits for a disk), and a worker
// that sleeps takes long to wake. A device lane that is ready must not wait for either.

#include <tbb/concurrent_queue.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "executor/plan/plan.h"

namespace arbalest {

// Issues instances of a plan's tasks, and those that become ready by that.
class Issuer {
 public:
  virtual void issue(TaskId task, int64_t instance) = 0;

 protected:
  ~Issuer() = default;
};

class IssuingThreads {
 public:
  // A thread that has nothing to issue polls for `patience` before it sleeps. Throws RunError if the system refuses a
  // thread.
  IssuingThreads(int threads, std::chrono::microseconds patience);
  // Issues everything that was pushed before it ends the threads.
  ~IssuingThreads();

  // First in, first out. Any thread may call it, an issuer too. `by` lives until it has issued the instance. Takes a
  // lock only if a thread is to be woken.
  void push(Issuer& by, TaskId task, int64_t instance);
  int count() const { return int(threads_.size()); }

 private:
  struct Item {
    Issuer* by = nullptr;
    TaskId task = kNone;
    int64_t instance = 0;
  };

  explicit IssuingThreads(std::chrono::microseconds patience) : patience_(patience) {}
  void work();
  bool take(Item& item);

  const std::chrono::microseconds patience_;
  tbb::concurrent_queue<Item> queue_;
  std::atomic<int64_t> waiting_{0};  // in queue_; for a moment less by what was taken while it was being pushed
  std::atomic<int> asleep_{0};
  std::mutex mutex_;  // of falling asleep and waking
  std::condition_variable pushed_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace arbalest
