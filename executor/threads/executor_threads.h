// SPDX-License-Identifier: Apache-2.0
#pragma once
// The threads that serve a scheduler, or the schedulers of several runs in one process: TBB's for host tasks, and those
// that only issue.

#include <tbb/global_control.h>
#include <tbb/task_arena.h>

#include <chrono>

#include "executor/devices/threads.h"
#include "executor/threads/issuing_threads.h"

namespace arbalest {

class ExecutorThreads {
 public:
  // `threads`: host tasks that may run at once. `patience`: as IssuingThreads has it. Throws RunError if the system
  // refuses the threads.
  ExecutorThreads(int threads, int issuing, std::chrono::microseconds patience,
                  const ThreadStarter& starter = start_std_thread);

  int threads() const { return threads_; }
  tbb::task_arena& host_tasks() { return host_tasks_; }
  IssuingThreads& issuing() { return issuing_; }

 private:
  void start_workers(const ThreadStarter& starter);

  const int threads_;
  tbb::global_control parallelism_;  // so many host tasks may run at once, whatever the number of cores
  tbb::task_arena host_tasks_;
  IssuingThreads issuing_;
};

}  // namespace arbalest
