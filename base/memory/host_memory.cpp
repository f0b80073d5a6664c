// SPDX-License-Identifier: Apache-2.0
#include "base/memory/host_memory.h"

#include <unistd.h>

namespace arbalest {

int64_t host_memory() {
  const int64_t pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
  return pages > 0 && bytes > 0 ? pages * bytes : -1;
}

}  // namespace arbalest
