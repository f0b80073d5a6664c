#include "executor/issuing_threads.h"

#include <utility>

namespace arbalest {

IssuingThreads::IssuingThreads(int threads, std::chrono::microseconds patience, Issue issue)
    : patience_(patience), issue_(std::move(issue)), ring_(256) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

IssuingThreads::~IssuingThreads() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  pushed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void IssuingThreads::push(TaskId task, int64_t instance) {
  const std::scoped_lock lock(mutex_);
  if (end_ - first_ == ring_.size()) {
    std::vector<Item> larger(2 * ring_.size());
    for (uint64_t i = first_; i != end_; ++i) larger[i % larger.size()] = ring_[i % ring_.size()];
    ring_ = std::move(larger);
  }
  ring_[end_++ % ring_.size()] = {task, instance};
  waiting_.store(end_ - first_, std::memory_order_relaxed);
  if (asleep_ > 0) pushed_.notify_one();
}

// False once there is nothing left and nothing more to come.
bool IssuingThreads::take(Item& item) {
  const auto until = std::chrono::steady_clock::now() + patience_;
  while (waiting_.load(std::memory_order_relaxed) == 0 && std::chrono::steady_clock::now() < until) {
    std::this_thread::yield();
  }
  std::unique_lock lock(mutex_);
  ++asleep_;
  pushed_.wait(lock, [this] { return first_ != end_ || stopping_; });
  --asleep_;
  if (first_ == end_) return false;
  item = ring_[first_++ % ring_.size()];
  waiting_.store(end_ - first_, std::memory_order_relaxed);
  return true;
}

void IssuingThreads::work() {
  for (Item item; take(item);) issue_(item.task, item.instance);
}

}  // namespace arbalest
