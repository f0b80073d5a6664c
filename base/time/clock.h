// SPDX-License-Identifier: Apache-2.0
#pragma once
// The system's clocks: CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID, a thread's of pthread_getcpuclockid().

#include <cstdint>
#include <ctime>

namespace arbalest {

// In ns; 0 if the thread whose clock it is has ended.
inline int64_t clock_ns(clockid_t clock) {
  timespec time{};
  return clock_gettime(clock, &time) == 0 ? int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec : 0;
}

}  // namespace arbalest
