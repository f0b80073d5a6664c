// SPDX-License-Identifier: Apache-2.0
#pragma once
// Warnings of a sweep. Its trials are alike but for a few settings, so that most would warn of the same thing.

#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "base/process.h"

namespace arbalest {

// Takes the warnings of the process over, as long as it lives, and passes each distinct one on once. There is one at a
// time.
class TrialWarnings {
 public:
  // Warnings wait for tell_gathered(), with the number of trials that they are of.
  TrialWarnings();
  // Tells what still waits.
  ~TrialWarnings();
  TrialWarnings(const TrialWarnings&) = delete;
  TrialWarnings& operator=(const TrialWarnings&) = delete;

  // Warnings from here on are of so many trials, which no earlier call meant. One that came before the first call alone
  // is of all.
  void begin_trials(int64_t trials);

  // Passes on what waits: "MESSAGE (3 of 12 trials)", without the number if it is all. Later warnings do not wait.
  void tell_gathered(int64_t all_trials);

 private:
  struct Gathered {
    std::string message;
    int64_t trials = 0;  // 0: all
    int64_t from = 0;    // the last call of begin_trials() that it came after
  };

  static void take(const std::string& message);
  void add(const std::string& message);

  const MessageHandler before_;
  std::mutex mutex_;                // of what follows
  std::vector<Gathered> gathered_;  // in the order of their first trials
  std::set<std::string> known_;     // told or gathered
  bool gathers_ = true;
  int64_t calls_ = 0, trials_ = 0;  // of begin_trials(), and what the last one said
};

}  // namespace arbalest
