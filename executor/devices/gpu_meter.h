// SPDX-License-Identifier: Apache-2.0
#pragma once
// GPUs while they work: the energy that they have used, how busy they are, why they are slowed.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "executor/devices/nvml.h"
#include "executor/plan/plan.h"

namespace arbalest {

// All devices together.
struct GpuReading {
  std::optional<double> joules;        // since their driver was loaded; none: one of them does not tell
  std::optional<double> busy;          // mean of GpuState::busy; none: one of them does not tell
  std::vector<std::string> held_back;  // "cuda:0: its clocks were held back by temperature under load"
};

class GpuMeter {
 public:
  explicit GpuMeter(const std::vector<PlanDevice>& devices);
  // GPUs that NVML knows: their names and bus ids.
  GpuMeter(std::unique_ptr<Nvml> nvml, std::vector<std::pair<std::string, std::string>> gpus)
      : nvml_(std::move(nvml)), gpus_(std::move(gpus)) {}

  // Nothing is known if a device is no GPU, or is another process's.
  GpuReading read() const;

 private:
  std::unique_ptr<Nvml> nvml_;  // nullptr: nothing is known
  std::vector<std::pair<std::string, std::string>> gpus_;
};

}  // namespace arbalest
