// SPDX-License-Identifier: Apache-2.0
#pragma once
// A process that does a part of the work, so that its end ends nothing else.

#include <stop_token>
#include <string>
#include <vector>

namespace arbalest {

struct ChildEnd {
  int status = 0;      // exit status; meaningless if a signal ended it
  int signal = 0;      // that ended it; 0: it exited
  std::string output;  // all of its standard output
  std::string errors;  // the last 64 KiB of its standard error
  double seconds = 0;
};

// Runs a program, found by its path, with the words after its name, and waits for its end. The process is in a group of
// its own: terminals do not interrupt it. Once a stop is requested it gets SIGTERM. It ends with this process, however
// that ends. Throws RunError if it cannot be started.
ChildEnd run_child(const std::string& program, const std::vector<std::string>& words, const std::stop_token& stop);

}  // namespace arbalest
