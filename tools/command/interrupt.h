// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ctrl-C, and signals that ask a process to end, as a request to stop: the first asks what is under way to end early,
// the second kills the process.

#include <stop_token>
#include <string>
#include <thread>

namespace arbalest {

// Handles SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU (of which further ones kill nothing) and, unless nohup has it
// ignored, SIGHUP while it lives; one at a time in a process.
class InterruptHandler {
 public:
  static constexpr const char* kOfBatches =
      "\narbalest: ending after the batches already read; once more to stop at once\n";
  static constexpr const char* kOfTraining =  // of a model, which is saved
      "\narbalest: ending after the batches already read; once more to stop at once, without saving\n";

  // `told` is written to standard error when the process is asked to end; it lives as long as the handler.
  explicit InterruptHandler(const char* told = kOfBatches);
  ~InterruptHandler();
  InterruptHandler(const InterruptHandler&) = delete;
  InterruptHandler& operator=(const InterruptHandler&) = delete;

  // Requested once the process was asked to end.
  std::stop_token token() const { return source_.get_token(); }

  // Whether the process was asked to end.
  static bool requested();

  // By which signal: "SIGINT"; "" if it was not asked to.
  static std::string signal_name();

 private:
  std::stop_source source_;
  std::thread requesting_;  // waits for the first signal, whose handler may not request a stop itself
};

}  // namespace arbalest
