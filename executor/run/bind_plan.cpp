// SPDX-License-Identifier: Apache-2.0
#include "executor/run/bind_plan.h"

#include <algorithm>

namespace arbalest {

std::unique_ptr<Binding> bind_plan(Plan& plan, int threads, double device_timeout, const BindOptions& options,
                                   const std::shared_ptr<DeviceCache>& cache) {
  const auto progress = make_cpu_progress(plan.tasks.size());
  const auto events = make_cuda_events(plan.tasks.size());
  const auto cpus = std::count_if(plan.devices.begin(), plan.devices.end(),
                                  [](const PlanDevice& d) { return d.kind == PlanDevice::Kind::Cpu; });
  auto calls = std::make_unique<CallWatch>(device_timeout);
  std::vector<std::unique_ptr<Device>> devices;
  for (const PlanDevice& device : plan.devices) {
    devices.push_back(device.kind == PlanDevice::Kind::Cpu
                          ? make_cpu_device(device.index, std::max(1, threads / int(cpus)), progress)
                          : make_cuda_device(device.index, events, *calls, cache));
  }
  const bool spans = std::any_of(plan.lanes.begin(), plan.lanes.end(),
                                 [](const Lane& lane) { return lane.kind == Lane::Kind::Collectives; });
  std::unique_ptr<Queues> collectives;
  const bool apart = !plan.ranks_of_devices.empty();
  if (spans && cpus > 0) {
    collectives = apart ? make_rank_collectives(options.ranks, plan, progress)
                        : make_cpu_device(int(plan.devices.size()), 1, progress);
  }
  if (spans && cpus == 0) {
    collectives = make_cuda_collectives(plan, apart ? options.ranks : nullptr, events, *calls, cache);
  }
  return std::make_unique<Binding>(plan, std::move(calls), std::move(devices), std::move(collectives), options);
}

}  // namespace arbalest
