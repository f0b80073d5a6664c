// SPDX-License-Identifier: Apache-2.0
#include "base/in_threads.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace arbalest {

void in_threads(size_t count, size_t threads, const std::function<void(size_t)>& work) {
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
    std::vector<std::jthread> others;
    try {
      while (others.size() + 1 < std::min(threads, count)) others.emplace_back(run);
    } catch (const std::system_error&) {  // no more threads
    }
    run();
  }
  if (fault) std::rethrow_exception(fault);
}

}  // namespace arbalest
