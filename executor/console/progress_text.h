// SPDX-License-Identifier: Apache-2.0
#pragma once
// The line that tells where a run is. Internal to executor.

#include <cstddef>
#include <cstdint>
#include <string>

#include "executor/session/observer.h"

namespace arbalest {

inline constexpr const char* kInputBound = "input-bound";  // if training waits for its input

// "epoch 3/10  [===>      ]  37 %  loss 0.1234  accuracy 0.9612  12.3k images/s  ETA 1:23", no longer than `width`
// columns. What matters least (learning rate, bar, metrics, the share of the epoch) goes first, and the bar takes what
// is left. `validated`: the share of a validation that goes on, or of its recalibration; below 0: none does.
struct ProgressLayout {
  size_t width = std::string::npos;
  bool bar = false;
  double validated = -1;
  bool recalibrates = false;
};
std::string progress_text(const RunStarted& run, const RunProgress& progress, const ProgressLayout& layout);

std::string short_count(double value);   // "950", "12.3k", "1.20M"
std::string clock_time(double seconds);  // "0:07", "1:02:03"

std::string measured(double value);          // "0.1234", "0.000123", "1.2345e+07" or "nan"
std::string updates_skipped(int64_t count);  // "3 updates skipped"

}  // namespace arbalest
