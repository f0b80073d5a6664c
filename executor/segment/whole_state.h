// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state of a run of several processes, from what each of them has of it.

#include "executor/segment/left_state.h"
#include "executor/segment/segment_snapshot.h"
#include "executor/world/ranks.h"

namespace arbalest {

// Each rank calls this at the same point with its own learners. Rank 0 gets those of all in their order; elsewhere the
// result is what the rank has itself.
RunState gathered(Ranks& ranks, RunState mine);
// The same for every rank.
RunState exchanged(Ranks& ranks, RunState mine);
// The same for ranks that are left, and those that have come back. The result has all learners, and the cursor of the
// one that is furthest ahead. Each host has the average of its rank that has seen most averagings; the moving average
// is that of the rank that has seen most of all. If hosts were meeting, all learners start from the mean of the
// averages before the hosts' last ones.
LeftState exchanged(Ranks& ranks, const LeftState& mine);
// This rank's snapshot with the numbers of all learners and the sums of all validating devices. Arrays of other ranks'
// learners are empty, and so are those that a rank before this one has as well: each is at one rank.
SegmentSnapshot completed(Ranks& ranks, SegmentSnapshot mine);

}  // namespace arbalest
