// SPDX-License-Identifier: Apache-2.0
#include "executor/session/option_ranges.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/setting.h"

namespace arbalest {
namespace {

enum class Besides : uint8_t { Nothing, Zero, Infinity };

[[noreturn]] void refuse(SettingKey setting, const std::string& value, const std::string& range, Besides besides) {
  throw GraphError(fmt::format("{}: expected {}{}{}", set_to(setting, value), besides == Besides::Zero ? "0, or " : "",
                               range, besides == Besides::Infinity ? ", or an infinity" : ""));
}

void whole(SettingKey setting, std::optional<int64_t> value, WholeRange range, Besides besides = Besides::Nothing) {
  if (!value || (*value >= range.least && *value <= range.most)) return;
  if (*value == 0 && besides == Besides::Zero) return;
  refuse(setting, std::to_string(*value), to_string(range), besides);
}

// NaN is in no range.
void real(SettingKey setting, double value, RealRange range, Besides besides = Besides::Nothing) {
  if (value >= range.least && value <= range.most) return;
  if (value == 0 && besides == Besides::Zero) return;
  if (std::isinf(value) && value > 0 && besides == Besides::Infinity) return;
  refuse(setting, fmt::format("{:g}", value), fmt::format("a number from {:g} to {:g}", range.least, range.most),
         besides);
}

}  // namespace

std::string to_string(const WholeRange& range) {
  return fmt::format("a whole number from {} to {}", range.least,
                     range.most == INT64_MAX ? "2^63 - 1" : std::to_string(range.most));
}

void check_ranges(const SessionOptions& options) {
  using Ranges = OptionRanges;
  whole(SettingKey::Learners, options.learners.per_device, Ranges::kLearners, Besides::Zero);
  whole(SettingKey::BatchTotal, options.learners.batch_total, Ranges::kBatchTotal);
  whole(SettingKey::Epochs, options.length.epochs, Ranges::kEpochs);
  whole(SettingKey::ScheduleEpochs, options.length.schedule_epochs, Ranges::kScheduleEpochs);
  whole(SettingKey::Iterations, options.length.iterations, Ranges::kIterations);
  real(SettingKey::TimeLimit, options.length.seconds, Ranges::kTimeLimit, Besides::Zero);
  const ExecutionOptions& execution = options.execution;
  whole(SettingKey::Threads, execution.threads, Ranges::kThreads);
  real(SettingKey::DeviceTimeout, execution.device_timeout, Ranges::kDeviceTimeout, Besides::Infinity);
  whole(SettingKey::MemoryLimit, execution.memory_limit, Ranges::kMemoryLimit, Besides::Zero);
  whole(SettingKey::SkipBad, execution.skip_bad, Ranges::kSkipBad);
  real(SettingKey::ReadTimeout, execution.read_timeout, Ranges::kReadTimeout);
  whole(SettingKey::LogEvery, execution.report_every, Ranges::kLogEvery);
  whole(SettingKey::SampleEvery, execution.sample_ms, Ranges::kSampleEvery);
  whole(SettingKey::Patience, options.rules.patience, Ranges::kPatience);
  whole(SettingKey::Plateau, options.rules.plateau, Ranges::kPlateau);
  real(SettingKey::PlateauFactor, options.rules.plateau_factor, Ranges::kPlateauFactor);
  whole(SettingKey::Recalibrate, options.rules.recalibrate, Ranges::kRecalibrate);
  const CheckpointOptions& checkpoints = options.checkpoints;
  whole(SettingKey::CheckpointEvery, checkpoints.iterations, Ranges::kCheckpointEvery, Besides::Zero);
  whole(SettingKey::CheckpointEveryEpochs, checkpoints.epochs, Ranges::kCheckpointEvery, Besides::Zero);
  real(SettingKey::CheckpointEverySeconds, checkpoints.seconds, Ranges::kCheckpointEverySeconds);
  whole(SettingKey::CheckpointKeep, checkpoints.keep, Ranges::kCheckpointKeep);
  real(SettingKey::NanRateFactor, options.divergence.rate_factor, Ranges::kNanRateFactor);
  whole(SettingKey::NanRollbacks, options.divergence.most_rollbacks, Ranges::kNanRollbacks);
}

}  // namespace arbalest
