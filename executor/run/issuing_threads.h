// SPDX-License-Identifier: Apache-2.0
#pragma once
// Threads that only issue. Host tasks may hold TBB's workers for long (a reader that waits for a disk), and a worker
// that sleeps takes long to wake. A device lane that is ready must not wait for either.

#include <tbb/concurrent_queue.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "executor/plan/plan.h"

namespace arbalest {

class IssuingThreads {
 public:
  using Issue = std::function<void(TaskId task, int64_t instance)>;

  // A thread that has nothing to issue polls for `patience` before it sleeps. Throws RunError if the system refuses a
  // thread.
  IssuingThreads(int threads, std::chrono::microseconds patience, Issue issue);
  // Issues everything that was pushed before it ends the threads.
  ~IssuingThreads();

  // First in, first out. Any thread may call it, `issue` too. Takes a lock only if a thread is to be woken.
  void push(TaskId task, int64_t instance);

 private:
  struct Item {
    TaskId task = kNone;
    int64_t instance = 0;
  };

  IssuingThreads(std::chrono::microseconds patience, Issue issue);
  void work();
  bool take(Item& item);

  const std::chrono::microseconds patience_;
  const Issue issue_;
  tbb::concurrent_queue<Item> queue_;
  std::atomic<int64_t> waiting_{0};  // in queue_; for a moment less by what was taken while it was being pushed
  std::atomic<int> asleep_{0};
  std::mutex mutex_;  // of falling asleep and waking
  std::condition_variable pushed_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace arbalest
