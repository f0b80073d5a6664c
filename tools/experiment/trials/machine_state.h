// SPDX-License-Identifier: Apache-2.0
#pragma once
// The state of a machine before something is measured on it.

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "executor/devices/nvml.h"
#include "executor/plan/plan.h"

namespace arbalest {

// The first of the devices that is not in this machine; none: all are.
std::optional<PlanDevice> absent_device(const std::vector<PlanDevice>& devices);

// The numbers of the cores that this process may use; empty: unknown.
std::set<int> usable_cores();

struct MachineState {
  std::string host;                                           // name
  std::string cpu;                                            // model
  int cores = 0;                                              // that this process may use
  double busy_cores = 0;                                      // of those, by others, over a quarter of a second
  double load = 0;                                            // of the last minute
  std::vector<std::string> gpus;                              // "cuda:0: 3 % used, 512 MiB taken, 1980 of 1980 MHz"
  std::vector<std::string> faults;                            // why measurements would mislead
  std::vector<std::pair<std::string, std::string>> software;  // software_of_machine()
};

// Looks for a quarter of a second, in which this process does nothing else. GPUs are looked at through NVML.
MachineState look_at_machine(const std::vector<PlanDevice>& devices);

// Adds the facts and faults of GPUs, given by their names and bus ids. NVML counts the use of up to a second: if there
// was any it looks again a second later, since it may have been the use of a process that has ended. Throws RunError if
// NVML knows no such GPU.
void look_at_gpus(const Nvml& nvml, const std::vector<std::pair<std::string, std::string>>& gpus, MachineState& state);

// Names and versions of software that measurements depend on, apart from the build: "kernel", the libraries of its
// kernels, CUDA's and, as far as NVML is there, "nvidia driver".
std::vector<std::pair<std::string, std::string>> software_of_machine(const char* nvml = "libnvidia-ml.so.1");

// For results, whose devices name the model already.
nlohmann::ordered_json record_of(const MachineState& state);

}  // namespace arbalest
