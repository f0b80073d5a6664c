// SPDX-License-Identifier: Apache-2.0
#pragma once
// A run and the other processes that it is trained by: checks before it begins, and going on without those that are
// lost.

#include <exception>
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

// True if a rank is lost, which `error` follows from, and the run is to go on without it.
bool goes_on_without_lost(const SessionOptions& options, const std::exception& error);
// After a loss: waits for the ranks that are left (Ranks::go_on()), and takes the devices of the others out of the
// options. Returns the names of the ranks that are lost.
std::vector<std::string> leave_out_lost(SessionOptions& options);
// The state of rank 0's monitor, which may have heard of one report more or less than others.
MonitorState monitor_of_first(Ranks& ranks, const Monitor& monitor);

}  // namespace arbalest
