// SPDX-License-Identifier: Apache-2.0
#include "ops/idle_threads.h"

#ifndef _OPENMP

namespace arbalest {

std::shared_ptr<void> let_idle_threads_sleep() {
  return nullptr;
}

}  // namespace arbalest

#else

#include <omp.h>

#include <atomic>
#include <cstdlib>
#include <mutex>
#include <thread>

namespace arbalest {
namespace {

// One thread more than there are processors: a team belongs to the thread that started it and lives as long.
class SleepingTeam {
 public:
  SleepingTeam() : thread_([this] { run(); }) { started_.wait(false); }
  ~SleepingTeam() {
    ended_.store(true);
    ended_.notify_one();
    thread_.join();
  }

 private:
  void run() {
    std::atomic<int> members{0};  // without something to do the region would be left out
#pragma omp parallel num_threads(omp_get_num_procs() + 1)
    members.fetch_add(1);
    started_.store(true);
    started_.notify_one();
    ended_.wait(false);
  }

  std::atomic<bool> started_{false}, ended_{false};
  std::thread thread_;  // last: it uses the others
};

}  // namespace

std::shared_ptr<void> let_idle_threads_sleep() {
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT")) return nullptr;
  static std::mutex mutex;
  static std::weak_ptr<SleepingTeam> shared;
  const std::scoped_lock lock(mutex);
  std::shared_ptr<SleepingTeam> team = shared.lock();
  if (!team) shared = team = std::make_shared<SleepingTeam>();
  return team;
}

}  // namespace arbalest

#endif
