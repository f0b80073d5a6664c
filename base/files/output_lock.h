// SPDX-License-Identifier: Apache-2.0
#pragma once
// Locks on output files. Without them, two processes that write the same file would destroy or replace each other's
// output.

#include <filesystem>
#include <string>

#include "base/error.h"

namespace arbalest {

// Takes a lock on an open file, which ends when all copies of the descriptor are closed, at the latest with the
// process. Returns false if somebody else has it. A file system without locks tells nothing: true.
bool lock_at_once(int descriptor);

// "process 4711", or "another process" if the system does not tell which.
std::string holder_of_lock(int descriptor);

// Another process, or another run of this one, writes the output.
class OutputInUse : public RunError {
 public:
  // `what`: "file", "log". `holder`: as holder_of_lock() names it.
  OutputInUse(const std::string& path, const std::string& what, std::string holder);
  const std::string& holder() const { return holder_; }

 private:
  std::string holder_;
};

// Keeps other processes away from a file that AtomicFile is going to replace or make, by a lock on a second file in the
// same folder, .NAME.lock. The lock file is removed with this object. One that a killed process left does no harm. A
// device (/dev/null) may have several writers.
class OutputLock {
 public:
  // Throws OutputInUse ("FILE: process 4711 writes this file"), and RunError if the lock file cannot be made.
  explicit OutputLock(const std::filesystem::path& path);
  ~OutputLock();
  OutputLock(OutputLock&& other) noexcept;
  OutputLock& operator=(OutputLock&&) = delete;

 private:
  std::filesystem::path file_;
  int descriptor_ = -1;
};

}  // namespace arbalest
