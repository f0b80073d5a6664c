// SPDX-License-Identifier: Apache-2.0
#include "executor/session/option_ranges.h"

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/setting.h"

namespace arbalest {
namespace {

void whole(SettingKey setting, std::optional<int64_t> value, int64_t least, int64_t most = INT64_MAX) {
  if (!value || (*value >= least && *value <= most)) return;
  throw GraphError(fmt::format("{}: expected a whole number from {} to {}", set_to(setting, std::to_string(*value)),
                               least, most == INT64_MAX ? "2^63 - 1" : std::to_string(most)));
}

// NaN is in no range.
void real(SettingKey setting, double value, double least, double most) {
  if (value >= least && value <= most) return;
  throw GraphError(
      fmt::format("{}: expected a number from {:g} to {:g}", set_to(setting, fmt::format("{:g}", value)), least, most));
}

}  // namespace

void check_ranges(const SessionOptions& options) {
  constexpr int kMostReplicas = 1024, kMostThreads = 1024;
  constexpr int64_t kMostRecalibrated = 1'000'000, kMostMilliseconds = 3'600'000;
  constexpr double kShortest = 1e-3, kLongest = 1e9;  // seconds
  whole(SettingKey::Learners, options.learners.per_device, 0, kMostReplicas);
  whole(SettingKey::BatchTotal, options.learners.batch_total, 0);
  whole(SettingKey::Epochs, options.length.epochs, 1);
  whole(SettingKey::ScheduleEpochs, options.length.schedule_epochs, 1);
  whole(SettingKey::Iterations, options.length.iterations, 1);
  real(SettingKey::TimeLimit, options.length.seconds, 0, kLongest);
  const ExecutionOptions& execution = options.execution;
  whole(SettingKey::Threads, execution.threads, 0, kMostThreads);
  real(SettingKey::DeviceTimeout, execution.device_timeout, kShortest, kLongest);
  whole(SettingKey::MemoryLimit, execution.memory_limit, 0);
  whole(SettingKey::SkipBad, execution.skip_bad, 0);
  real(SettingKey::ReadTimeout, execution.read_timeout, 0, kLongest);
  whole(SettingKey::LogEvery, execution.report_every, 0);
  whole(SettingKey::SampleEvery, execution.sample_ms, 0, kMostMilliseconds);
  whole(SettingKey::Patience, options.rules.patience, 0);
  whole(SettingKey::Plateau, options.rules.plateau, 0);
  real(SettingKey::PlateauFactor, options.rules.plateau_factor, 0, 1);
  whole(SettingKey::Recalibrate, options.rules.recalibrate, 0, kMostRecalibrated);
  const CheckpointOptions& checkpoints = options.checkpoints;
  whole(SettingKey::CheckpointEvery, checkpoints.iterations, 0);
  whole(SettingKey::CheckpointEveryEpochs, checkpoints.epochs, 0);
  real(SettingKey::CheckpointEverySeconds, checkpoints.seconds, 0, kLongest);
  whole(SettingKey::CheckpointKeep, checkpoints.keep, 1);
  real(SettingKey::NanRateFactor, options.divergence.rate_factor, 1e-9, 1);
  whole(SettingKey::NanRollbacks, options.divergence.most_rollbacks, 1);
}

}  // namespace arbalest
