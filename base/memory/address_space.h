// SPDX-License-Identifier: Apache-2.0
#pragma once
// Address space for libraries that end the process, or crash, if they get no memory.

#include <cstddef>

namespace arbalest {

// Address space that nothing else can take while it lives. Throws RunError if a limit on it (ulimit -v) leaves less.
class AddressSpace {
 public:
  explicit AddressSpace(size_t bytes);
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;
  ~AddressSpace();

 private:
  const size_t bytes_;
  void* const begin_;
};

// glibc's allocator maps 64 MiB ("arena") for each thread that allocates, and keeps them when the thread ends, so that
// other threads have less room for their stacks. If the process' address space is limited (ulimit -v), threads that
// allocate for the first time after this call share the existing arenas (glibc's manual, M_ARENA_MAX).
void share_arenas();

}  // namespace arbalest
