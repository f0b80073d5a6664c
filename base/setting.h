// SPDX-License-Identifier: Apache-2.0
#pragma once
// Settings as messages name them. The library speaks of its fields (ExecutionOptions::read_timeout); a program whose
// user sets them otherwise says so once, as with the handlers of base/process.h: the command calls them --read-timeout.

#include <cstdint>
#include <string>

namespace arbalest {

// A setting that messages name. Its names stand in the table of setting.cpp, in the same order.
enum class SettingKey : uint8_t {
  BatchTotal,
  Change,
  Checkpoint,
  CheckpointEvery,
  CheckpointEveryEpochs,
  CheckpointEverySeconds,
  CheckpointKeep,
  Collectives,
  Deterministic,
  Devices,
  DeviceTimeout,
  Epochs,
  FindNan,
  Fresh,
  Iterations,
  Learners,
  LearnersAuto,  // --learners with the value by which the number is found while training
  LogEvery,
  LogOfRun,
  MemoryLimit,
  Metric,
  Model,
  NanRateFactor,
  NanRollbacks,
  OnLost,
  OnNan,
  Patience,
  Plateau,
  PlateauFactor,
  Precision,
  Probabilities,
  Rank,
  ReadTimeout,
  Recalibrate,
  Rendezvous,
  RendezvousTimeout,
  Resume,
  SampleEvery,
  Save,
  SaveBest,
  ScaleLr,
  ScheduleEpochs,
  SecretFile,
  Set,
  SkipBad,
  Strategy,
  Threads,
  TimeLimit,
  Trace,
  TraceOfRun,  // of a run that has ended
  Until,
  Value,
  Weights,
  WeightsMap,
  WhatIf,
  World,
  WorldSize
};
inline constexpr int kSettings = int(SettingKey::WorldSize) + 1;

// Names a setting or, unless `value` is "", what sets it to that.
using SettingNamer = std::string (*)(SettingKey setting, const std::string& value);

// "ExecutionOptions::skip_bad", "ExecutionOptions::skip_bad = 3": the default.
std::string name_field(SettingKey setting, const std::string& value);
// "--skip-bad", "--skip-bad 3": the options of the command `arbalest`.
std::string name_option(SettingKey setting, const std::string& value);

// Sets how all messages of the process name settings, and returns the former way; nullptr restores the default.
SettingNamer set_setting_namer(SettingNamer namer);

// A setting as the program's user knows it: "--checkpoint".
std::string name_of(SettingKey setting);
// A setting with a value, which may be a placeholder: "--checkpoint DIR".
std::string set_to(SettingKey setting, const std::string& value);

}  // namespace arbalest
