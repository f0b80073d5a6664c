// SPDX-License-Identifier: Apache-2.0
#include "executor/threads/executor_threads.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

#include "base/error.h"

namespace arbalest {

ExecutorThreads::ExecutorThreads(int threads, int issuing, std::chrono::microseconds patience,
                                 const ThreadStarter& starter)
    : threads_(std::max(1, threads)),
      parallelism_(tbb::global_control::max_allowed_parallelism, size_t(threads_ + 1)),
      host_tasks_(threads_, 0),
      issuing_(issuing, patience) {
  start_workers(starter);
}

// TBB starts its workers when work comes, and if the system refuses one, the work waits for ever. So the workers are
// started here, by tasks that wait for each other, after a check that the system provides that many threads.
void ExecutorThreads::start_workers(const ThreadStarter& starter) {
  constexpr auto kLongest = std::chrono::seconds(1);  // a program's own limit may allow TBB fewer workers
  const std::string what = fmt::format("host tasks ({} of them)", threads_);
  expect_threads(threads_, what, starter);
  struct Arrivals {
    std::atomic<int> here{0};
    std::atomic<bool> go{false};
  };
  // The tasks may outlive this object, so the counter that hands `arrivals` over to them is static. TBB's queue alone
  // orders nothing that ThreadSanitizer sees.
  static std::atomic<int> handed_over{0};
  const auto arrivals = std::make_shared<Arrivals>();
  handed_over.fetch_add(1, std::memory_order_release);
  host_tasks_.initialize();
  try {
    for (int i = 0; i < threads_; ++i) {
      host_tasks_.enqueue([arrivals] {
        (void)handed_over.load(std::memory_order_acquire);
        arrivals->here.fetch_add(1);
        arrivals->go.wait(false);
      });
    }
  } catch (const std::exception& error) {
    arrivals->go.store(true);
    arrivals->go.notify_all();
    throw RunError(fmt::format("no thread could be started for {}: {}", what, error.what()));
  }
  const auto until = std::chrono::steady_clock::now() + kLongest;
  while (arrivals->here.load() < threads_ && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  arrivals->go.store(true);
  arrivals->go.notify_all();
}

}  // namespace arbalest
