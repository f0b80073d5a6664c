#pragma once
// One run: the plan bound to devices, state in place, host tasks ready, then run and saved.

#include <atomic>
#include <memory>

#include "executor/binding.h"
#include "executor/host_tasks.h"
#include "executor/scheduler.h"
#include "executor/session.h"

namespace arbalest {

class Training {
 public:
  Training(Graph graph, const SessionOptions& options, RunObserver& observer);
  RunFinished run(const std::atomic<bool>& interrupted, double setup_seconds);
  double seconds() const { return monitor_.seconds(); }

 private:
  const Loop& training() const { return prepared_.program.training; }
  void check_targets() const;
  std::string replica_prefix(int32_t device, int64_t learner) const;
  // Every replica starts the same; validation's weights come with each snapshot.
  void set_initial_state();
  void make_host_tasks();
  std::function<void(int64_t)> fill_training(const Task& task);
  std::function<void(int64_t)> fill_validation(const Task& task);
  const ClockRelation& relation_to(std::string_view coarse) const;
  std::function<void(int64_t)> report();
  std::function<void(int64_t)> end_validation();
  void announce(double setup_seconds);
  void save(const RunFinished& end);

  const SessionOptions& options_;
  const int threads_;
  Prepared prepared_;
  Plan plan_;
  RunFacts facts_;
  DataOrder training_order_;
  Monitor monitor_;
  RunObserver& observer_;
  std::unique_ptr<Binding> binding_;
  Scheduler::HostFunctions host_;
  std::unique_ptr<Scheduler> scheduler_;
};

}  // namespace arbalest
