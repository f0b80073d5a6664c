// SPDX-License-Identifier: Apache-2.0
#pragma once
// The energy that GPUs have used, from their own counters.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "executor/devices/nvml.h"
#include "executor/plan/plan.h"

namespace arbalest {

class EnergyMeter {
 public:
  explicit EnergyMeter(const std::vector<PlanDevice>& devices);
  EnergyMeter(std::unique_ptr<Nvml> nvml, std::vector<std::string> bus_ids)  // of GPUs that NVML knows
      : nvml_(std::move(nvml)), bus_ids_(std::move(bus_ids)) {}

  // Joules since their driver was loaded, of all devices together; none if one of them does not tell, is no GPU, or is
  // another process's.
  std::optional<double> joules() const;

 private:
  std::unique_ptr<Nvml> nvml_;  // nullptr: nothing is known
  std::vector<std::string> bus_ids_;
};

}  // namespace arbalest
