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
// its own, so that terminals do not interrupt it, and its standard input is empty. Once a stop is requested the group
// gets SIGTERM, and SIGKILL half a minute later. What holds its pipes a second after its end is ended, too. The process
// itself ends with this one, however that ends; what it has started may then go on. Throws RunError if it cannot be
// started, or SIGCHLD is ignored.
ChildEnd run_child(const std::string& program, const std::vector<std::string>& words, const std::stop_token& stop);

}  // namespace arbalest
