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

}  // namespace arbalest
