#pragma once
// Address space for libraries that end the process, or crash, where they get no memory.

#include <cstddef>

namespace arbalest {

// Address space that nothing else can take while it lives. Throws RunError where a limit on it (ulimit -v) leaves less.
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

// glibc's allocator maps 64 MiB for each thread that uses it, and keeps them when the thread ends: address space in
// which other threads have no room for their stacks. Where there is a limit on it (ulimit -v), threads that allocate
// for the first time after this share what there is (glibc's manual, M_ARENA_MAX).
void share_arenas();

}  // namespace arbalest
