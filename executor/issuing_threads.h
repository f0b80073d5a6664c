#pragma once
// Threads that only issue. Host tasks may hold TBB's workers for long (a reader that waits for a disk), and a worker
// that sleeps takes long to wake; a device lane that is ready must not wait for either.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "executor/plan.h"

namespace arbalest {

class IssuingThreads {
 public:
  using Issue = std::function<void(TaskId task, int64_t instance)>;

  // A thread that has nothing to issue looks on for as long as `patience` before it sleeps.
  IssuingThreads(int threads, std::chrono::microseconds patience, Issue issue);
  // Whatever was pushed has been issued then.
  ~IssuingThreads();

  // First in, first out. Any thread may call it, `issue` too.
  void push(TaskId task, int64_t instance);

 private:
  struct Item {
    TaskId task;
    int64_t instance;
  };

  void work();
  bool take(Item& item);

  const std::chrono::microseconds patience_;
  const Issue issue_;
  std::mutex mutex_;
  std::condition_variable pushed_;
  std::vector<Item> ring_;            // a power of two
  uint64_t first_ = 0, end_ = 0;      // of what waits, modulo the ring's size
  std::atomic<uint64_t> waiting_{0};  // end_ - first_, to be looked at without the mutex
  int asleep_ = 0;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace arbalest
