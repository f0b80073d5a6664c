// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu.h"

namespace arbalest {

void run_parts(int64_t count, int64_t work, PartFunction part, const void* f) {
#ifdef _OPENMP
  constexpr int64_t kWorthwhile = 64 * 1024;
  if (count > 1 && count * work >= kWorthwhile) {
    const int64_t parts = std::min<int64_t>(count, 64);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < parts; ++i) part(f, i * count / parts, (i + 1) * count / parts);
    return;
  }
#endif
  (void)work;
  part(f, 0, count);
}

}  // namespace arbalest
