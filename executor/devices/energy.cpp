// SPDX-License-Identifier: Apache-2.0
#include "executor/devices/energy.h"

#include <algorithm>

#include "base/error.h"
#include "executor/devices/device.h"

namespace arbalest {

EnergyMeter::EnergyMeter(const std::vector<PlanDevice>& devices) {
  const auto is_own_gpu = [](const PlanDevice& device) {
    return device.kind == PlanDevice::Kind::Cuda && device.rank == 0;
  };
  if (devices.empty() || !std::all_of(devices.begin(), devices.end(), is_own_gpu)) return;
  try {
    nvml_ = std::make_unique<Nvml>();
  } catch (const RunError&) {
    return;
  }
  for (const PlanDevice& device : devices) bus_ids_.push_back(cuda_bus_id(device.index));
}

std::optional<double> EnergyMeter::joules() const {
  if (!nvml_) return std::nullopt;
  double sum = 0;
  try {
    for (const std::string& id : bus_ids_) {
      const std::optional<double> joules = nvml_->state(id).joules;
      if (!joules) return std::nullopt;
      sum += *joules;
    }
  } catch (const RunError&) {
    return std::nullopt;
  }
  return sum;
}

}  // namespace arbalest
