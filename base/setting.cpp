// SPDX-License-Identifier: Apache-2.0
#include "base/setting.h"

#include <atomic>

namespace arbalest {
namespace {

struct SettingNames {
  SettingKey setting;
  const char* option;
  const char* field;  // or the function that takes it
};

// No other source of the library names an option: tests/structure holds that, and that the fields are there.
constexpr SettingNames kNames[] = {
    {SettingKey::BatchTotal, "--batch-total", "LearnerOptions::batch_total"},
    {SettingKey::Change, "--change", "CheckpointOptions::changes"},
    {SettingKey::Checkpoint, "--checkpoint", "CheckpointOptions::folder"},
    {SettingKey::CheckpointEvery, "--checkpoint-every", "CheckpointOptions::iterations"},
    {SettingKey::CheckpointEveryEpochs, "--checkpoint-every", "CheckpointOptions::epochs"},
    {SettingKey::CheckpointEverySeconds, "--checkpoint-every", "CheckpointOptions::seconds"},
    {SettingKey::CheckpointKeep, "--checkpoint-keep", "CheckpointOptions::keep"},
    {SettingKey::Collectives, "--collectives", "WorldOptions::collectives"},
    {SettingKey::Deterministic, "--deterministic", "NumericsOptions::deterministic"},
    {SettingKey::Devices, "--devices", "LearnerOptions::devices"},
    {SettingKey::DeviceTimeout, "--device-timeout", "ExecutionOptions::device_timeout"},
    {SettingKey::Epochs, "--epochs", "LengthOptions::epochs"},
    {SettingKey::FindNan, "--find-nan", "DivergenceOptions::find"},
    {SettingKey::Fresh, "--fresh", "FileOptions::fresh"},
    {SettingKey::Iterations, "--iterations", "LengthOptions::iterations"},
    {SettingKey::Learners, "--learners", "LearnerOptions::per_device"},
    {SettingKey::LearnersAuto, "--learners auto", "LearnerOptions::per_device = 0"},
    {SettingKey::LogEvery, "--log-every", "ExecutionOptions::report_every"},
    {SettingKey::LogOfRun, "run --log", "arbalest run --log"},
    {SettingKey::MemoryLimit, "--memory-limit", "ExecutionOptions::memory_limit"},
    {SettingKey::Metric, "--metric", "ValidationRules::metric"},
    {SettingKey::Model, "--model", "load_graph()'s models"},
    {SettingKey::NanRateFactor, "--nan-rate-factor", "DivergenceOptions::rate_factor"},
    {SettingKey::NanRollbacks, "--nan-rollbacks", "DivergenceOptions::most_rollbacks"},
    {SettingKey::OnLost, "--on-lost", "SessionOptions::on_lost"},
    {SettingKey::OnNan, "--on-nan", "DivergenceOptions::then"},
    {SettingKey::Patience, "--patience", "ValidationRules::patience"},
    {SettingKey::Plateau, "--plateau", "ValidationRules::plateau"},
    {SettingKey::PlateauFactor, "--plateau-factor", "ValidationRules::plateau_factor"},
    {SettingKey::Precision, "--precision", "NumericsOptions::precision"},
    {SettingKey::Probabilities, "--probabilities", "ExportOptions::probabilities"},
    {SettingKey::Rank, "--rank", "WorldOptions::rank"},
    {SettingKey::ReadTimeout, "--read-timeout", "ExecutionOptions::read_timeout"},
    {SettingKey::Recalibrate, "--recalibrate", "ValidationRules::recalibrate"},
    {SettingKey::Rendezvous, "--rendezvous", "WorldOptions::rendezvous"},
    {SettingKey::RendezvousTimeout, "--rendezvous-timeout", "WorldOptions::patience"},
    {SettingKey::Resume, "--resume", "CheckpointOptions::resume"},
    {SettingKey::SampleEvery, "--sample-every", "ExecutionOptions::sample_ms"},
    {SettingKey::Save, "--save", "FileOptions::save"},
    {SettingKey::SaveBest, "--save-best", "FileOptions::save_best"},
    {SettingKey::ScaleLr, "--scale-lr", "LearnerOptions::rate_scaling"},
    {SettingKey::ScheduleEpochs, "--schedule-epochs", "LengthOptions::schedule_epochs"},
    {SettingKey::SecretFile, "--secret-file", "WorldOptions::secret_file"},
    {SettingKey::Set, "--set", "apply_override()"},
    {SettingKey::SkipBad, "--skip-bad", "ExecutionOptions::skip_bad"},
    {SettingKey::Strategy, "--strategy", "LearnerOptions::strategy"},
    {SettingKey::Threads, "--threads", "ExecutionOptions::threads"},
    {SettingKey::TimeLimit, "--time-limit", "LengthOptions::seconds"},
    {SettingKey::Trace, "--trace", "FileOptions::trace"},
    {SettingKey::TraceOfRun, "run --trace", "FileOptions::trace"},
    {SettingKey::Until, "--until", "ValidationRules::targets"},
    {SettingKey::Value, "--value", "ExportOptions::value"},
    {SettingKey::Weights, "--weights", "FileOptions::weights"},
    {SettingKey::WeightsMap, "--weights-map", "FileOptions::weights_map"},
    {SettingKey::WhatIf, "--what-if", "parse_what_if()"},
    {SettingKey::World, "--world", "set_world()"},
    {SettingKey::WorldSize, "--world-size", "WorldOptions::size"},
};

constexpr bool in_order() {
  int next = 0;
  for (const SettingNames& names : kNames) {
    if (int(names.setting) != next++) return false;
  }
  return next == kSettings;
}
static_assert(in_order(), "the table has each setting once, in the order of the enumeration");

const SettingNames& names_of(SettingKey setting) {
  return kNames[size_t(setting)];
}

std::atomic<SettingNamer> setting_namer = name_field;

}  // namespace

std::string name_field(SettingKey setting, const std::string& value) {
  const char* field = names_of(setting).field;
  return value.empty() ? field : std::string(field) + " = " + value;
}

std::string name_option(SettingKey setting, const std::string& value) {
  const char* option = names_of(setting).option;
  return value.empty() ? option : std::string(option) + " " + value;
}

SettingNamer set_setting_namer(SettingNamer namer) {
  return setting_namer.exchange(namer ? namer : name_field);
}

std::string name_of(SettingKey setting) {
  return setting_namer.load()(setting, "");
}

std::string set_to(SettingKey setting, const std::string& value) {
  return setting_namer.load()(setting, value);
}

}  // namespace arbalest
