// SPDX-License-Identifier: Apache-2.0
#include "executor/devices/gpu_meter.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "executor/devices/device.h"

namespace arbalest {

GpuMeter::GpuMeter(const std::vector<PlanDevice>& devices) {
  const auto is_own_gpu = [](const PlanDevice& device) {
    return device.kind == PlanDevice::Kind::Cuda && device.rank == 0;
  };
  if (devices.empty() || !std::all_of(devices.begin(), devices.end(), is_own_gpu)) return;
  try {
    nvml_ = std::make_unique<Nvml>();
  } catch (const RunError&) {
    return;
  }
  for (const PlanDevice& device : devices) gpus_.emplace_back(to_string(device), cuda_bus_id(device.index));
}

GpuReading GpuMeter::read() const {
  if (!nvml_) return {};
  GpuReading sum{0, 0, {}};
  try {
    for (const auto& [name, bus_id] : gpus_) {
      const GpuState state = nvml_->state(bus_id);
      const auto add = [](std::optional<double>& all, std::optional<double> one) {
        all = all && one ? std::optional(*all + *one) : std::nullopt;
      };
      add(sum.joules, state.joules);
      add(sum.busy, state.busy ? std::optional(*state.busy / double(gpus_.size())) : std::nullopt);
      for (const std::string& reason : state.held_back) {
        sum.held_back.push_back(fmt::format("{}: its clocks were held back by {} under load", name, reason));
      }
    }
  } catch (const RunError&) {
    return {};
  }
  return sum;
}

}  // namespace arbalest
