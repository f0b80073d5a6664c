#include "io/photos/in_threads.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace arbalest {

void in_threads(size_t count, const std::function<void(size_t)>& work) {
  constexpr size_t kThreads = 8;
  std::atomic<size_t> next{0};
  std::exception_ptr fault;
  std::mutex mutex;  // of the fault
  const auto run = [&] {
    try {
      for (size_t i = next++; i < count; i = next++) work(i);
    } catch (...) {
      const std::scoped_lock lock(mutex);
      if (!fault) fault = std::current_exception();
      next = count;
    }
  };
  {
    std::vector<std::jthread> threads;
    while (threads.size() + 1 < std::min(kThreads, count)) threads.emplace_back(run);
    run();
  }
  if (fault) std::rethrow_exception(fault);
}

}  // namespace arbalest
