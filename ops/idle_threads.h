// SPDX-License-Identifier: Apache-2.0
#pragma once
// How OpenMP's threads wait. Threads of GNU OpenMP spin for some milliseconds after every parallel region, which costs
// a factor of twenty as soon as anything else wants their cores. OMP_WAIT_POLICY controls this, but it is read before a
// library of ours could set it. However, if a process has more of those threads than there are processors, they spin a
// hundred times only (libgomp's manual, GOMP_SPINCOUNT). So a team that large is started, and sleeps.

#include <memory>

namespace arbalest {

// While the result lives, OpenMP's threads go to sleep as soon as they have nothing to do. All callers share one team.
// The result is nullptr if the environment says how to wait (OMP_WAIT_POLICY or GOMP_SPINCOUNT), and in a build without
// OpenMP.
std::shared_ptr<void> let_idle_threads_sleep();

}  // namespace arbalest
