// SPDX-License-Identifier: Apache-2.0
#pragma once
// A trace of several processes: each hands over what it recorded, and rank 0 puts all on one time line.

#include <functional>
#include <string>
#include <vector>

#include "executor/trace/trace_file.h"

namespace arbalest {

// A trace as a rank's part (executor/world/part.h), and back. unpacked() throws GraphError or RunError if the part is
// no such trace.
std::string packed(const TraceFile& trace);
TraceFile unpacked(const std::string& part);

// Replaces each time that is known, in ns, by what the function makes of it, at least 0. The function never decreases.
void move_times(TraceFile& trace, const std::function<int64_t(int64_t)>& moved);

// Joins the traces of all ranks, by rank, which count times from the same moment. The plan of the result has the lanes,
// tasks and edges of each rank's part one after the other, so a report or a collective is a task of each rank. Lanes,
// tasks and samples of no device get names that begin with the rank's name in the plan (PlanDevice::host). Samples of
// other ranks get the times of rank 0's samples: at each of these the latest value before it counts.
TraceFile joined(std::vector<TraceFile> traces);

}  // namespace arbalest
