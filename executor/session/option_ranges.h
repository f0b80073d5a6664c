// SPDX-License-Identifier: Apache-2.0
#pragma once
// The ranges of a session's numbers: one table for the library and for the command's options.

#include <cstdint>
#include <string>

#include "executor/session/session.h"

namespace arbalest {

struct WholeRange {
  int64_t least = 0, most = INT64_MAX;
};

std::string to_string(const WholeRange& range);  // "a whole number from 1 to 1024"

struct RealRange {
  double least = 0, most = 0;
};

// Ranges by setting. The library takes 0 besides, where that stands for a number that was not given.
struct OptionRanges {
  static constexpr WholeRange kLearners{1, 1024};  // on a device: a typing error makes no plan of millions
  static constexpr WholeRange kBatchTotal{};
  static constexpr WholeRange kEpochs{1}, kScheduleEpochs{1}, kIterations{1};
  static constexpr RealRange kTimeLimit{1e-3, 1e9};  // seconds, as all times here but those that say otherwise
  static constexpr WholeRange kThreads{0, 1024};
  static constexpr RealRange kDeviceTimeout{1e-3, 1e6};  // a program may pass an infinity, which is no limit
  static constexpr WholeRange kMemoryLimit{1, int64_t{1} << 50};
  static constexpr WholeRange kSkipBad{};
  static constexpr RealRange kReadTimeout{0, 1e6};
  static constexpr WholeRange kLogEvery{};
  static constexpr WholeRange kSampleEvery{0, 3'600'000};  // ms
  static constexpr WholeRange kPatience{}, kPlateau{};
  static constexpr RealRange kPlateauFactor{0, 1};
  static constexpr WholeRange kRecalibrate{0, 1'000'000};
  static constexpr WholeRange kCheckpointEvery{1, 1'000'000'000};  // iterations or epochs
  static constexpr RealRange kCheckpointEverySeconds{0, 1e9};
  static constexpr WholeRange kCheckpointKeep{1};
  static constexpr RealRange kNanRateFactor{1e-9, 1};
  static constexpr WholeRange kNanRollbacks{1};
};

// Throws GraphError for a number that is out of its range, by its setting's name, with what it may be.
void check_ranges(const SessionOptions& options);

}  // namespace arbalest
