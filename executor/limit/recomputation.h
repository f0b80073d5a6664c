// SPDX-License-Identifier: Apache-2.0
#pragma once
// The cost of a memory limit: see executor/limit/fit_memory.h.

#include <cstdint>
#include <string>

namespace arbalest {

struct Recomputation {
  int64_t limit = 0;   // bytes of each device; 0: there is none
  int64_t values = 0;  // of a step, that are computed again
  int64_t bytes = 0;   // of these together
  double work = 0;     // estimated: what they add to a step, as a share of it
};

// "31 values (4.1 GiB) are computed again in each step, about 9 % more work"; "nothing is computed again".
std::string to_string(const Recomputation& recomputation);

// "6 GiB", "900.5 MiB", "12 KiB", "100 B"
std::string size_text(int64_t bytes);

}  // namespace arbalest
