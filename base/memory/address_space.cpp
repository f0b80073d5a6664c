// SPDX-License-Identifier: Apache-2.0
#include "base/memory/address_space.h"

#include <fmt/format.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "base/error.h"

namespace arbalest {

AddressSpace::AddressSpace(size_t bytes)
    : bytes_(bytes), begin_(mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
  if (begin_ != MAP_FAILED) return;
  throw RunError(fmt::format(
      "not enough memory on the host: its limit (ulimit -v) leaves less than the {} MiB of address space that threads "
      "and kernels need besides the model",
      bytes >> 20));
}

AddressSpace::~AddressSpace() {
  munmap(begin_, bytes_);
}

void share_arenas() {
#ifdef M_ARENA_MAX
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) mallopt(M_ARENA_MAX, 1);
#endif
}

}  // namespace arbalest
