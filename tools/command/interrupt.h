#pragma once
// Ctrl-C, SIGTERM and SIGHUP as a flag: the first asks the run to end after the batches already read, the second kills
// the process.

#include <atomic>
#include <string>

namespace arbalest {

// Handles SIGINT, SIGTERM and, unless nohup has it ignored, SIGHUP while it lives; one at a time in a process.
class InterruptHandler {
 public:
  InterruptHandler();
  ~InterruptHandler();
  InterruptHandler(const InterruptHandler&) = delete;
  InterruptHandler& operator=(const InterruptHandler&) = delete;

  // True once the process was asked to end; lives as long as the process, so that any thread may poll it.
  static const std::atomic<bool>& requested();

  // By which signal: "SIGINT"; "" where it was not asked to.
  static std::string signal_name();
};

}  // namespace arbalest
