// SPDX-License-Identifier: Apache-2.0
#pragma once
// A run and the other processes that it is trained by: checks before it begins, and going on without those that are
// lost.

#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "executor/session/session.h"
#include "executor/training/run_identity.h"
#include "executor/world/ranks.h"

namespace arbalest {

// Throws GraphError if the learners train a model each, or if the run is to go on without lost ranks
// (SessionOptions::on_lost) and cannot. Throws on every rank, naming the rank, its host and both values, unless build,
// graph, plan, data and options of all ranks are the same. `identity`: of this rank's run.
void check_world(Ranks& ranks, const Prepared& prepared, const SessionOptions& options, const RunIdentity& identity);

// The ranks of a run as they come and go.
class RanksOfRun {
 public:
  explicit RanksOfRun(const SessionOptions& options) : ranks_(options.ranks), devices_(options.learners.devices) {}

  // True if this process comes back to a run that has begun.
  bool returns() const { return ranks_ && ranks_->returns(); }
  // At rank 0: true if a rank has come back, and waits to be taken in.
  bool awaited() const { return ranks_ && ranks_->awaited(); }
  // Takes in ranks from now on, if the run is to go on without those that are lost.
  void begin();

  struct Change {
    std::vector<std::string> lost, returned;  // names; returned: known to rank 0
  };
  // Waits for the ranks that are there (Ranks::go_on()), and gives the options their devices.
  Change meet(SessionOptions& options, bool take_back);
  const std::vector<PlanDevice>& devices() const { return devices_; }  // of all ranks, as the run was started

 private:
  const std::shared_ptr<Ranks> ranks_;  // also while the options have none, because one is alone
  const std::vector<PlanDevice> devices_;
};

// True if a rank is lost, which `error` follows from, and the run is to go on without it.
bool goes_on_without_lost(const SessionOptions& options, const std::exception& error);
// The state of rank 0's monitor, which may have heard of one report more or less than others.
MonitorState monitor_of_first(Ranks& ranks, const Monitor& monitor);

}  // namespace arbalest
