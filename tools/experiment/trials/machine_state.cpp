// SPDX-License-Identifier: Apache-2.0
#include "tools/experiment/trials/machine_state.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "base/error.h"
#include "executor/devices/device.h"
#include "executor/limit/recomputation.h"

namespace arbalest {
namespace {

constexpr double kMostBusy = 0.2;               // share of the cores
constexpr double kMostUsed = 10;                // % of a GPU
constexpr double kMostTaken = 1.0 * (1 << 30);  // bytes of a GPU's memory, more than any driver keeps

// Seconds that the cores have worked, since the machine was started; −1: unknown.
double worked(const std::set<int>& cores) {
  std::ifstream file("/proc/stat");
  double sum = 0;
  bool any = false;
  for (std::string line; std::getline(file, line) && line.starts_with("cpu");) {
    std::istringstream words(line.substr(3));
    int core = 0;
    double user = 0, nice = 0, system = 0, idle = 0, waiting = 0, interrupts = 0, soft = 0;
    if (line[3] == ' ' || !(words >> core >> user >> nice >> system >> idle >> waiting >> interrupts >> soft)) continue;
    if (!cores.contains(core)) continue;
    any = true;
    sum += user + nice + system + interrupts + soft;
  }
  return any ? sum / double(sysconf(_SC_CLK_TCK)) : -1;
}

void look_at_gpu(const Nvml& nvml, const std::string& name, const std::string& bus_id, MachineState& state) {
  std::vector<std::string> facts;
  for (const Gauge& gauge : nvml.gauges(bus_id)) {
    const std::optional<double> value = gauge.read();
    if (!value) continue;
    if (gauge.name == "GPU utilisation") {
      facts.push_back(fmt::format("{:.0f} % used", *value));
      if (*value > kMostUsed)
        state.faults.push_back(fmt::format("{}: another process uses it ({:.0f} %)", name, *value));
    } else if (gauge.name == "GPU memory") {
      facts.push_back(fmt::format("{} taken", size_text(int64_t(*value))));
      if (*value > kMostTaken) {
        state.faults.push_back(
            fmt::format("{}: {} of its memory are taken by others", name, size_text(int64_t(*value))));
      }
    } else if (gauge.name == "GPU clock") {
      facts.push_back(fmt::format("{:.0f} of {:.0f} MHz", *value, gauge.most));
    }
  }
  state.gpus.push_back(fmt::format("{}: {}", name, fmt::join(facts, ", ")));
  for (const std::string& reason : nvml.state(bus_id).held_back) {
    state.faults.push_back(fmt::format("{}: its clocks are held back by {}", name, reason));
  }
}

}  // namespace

std::optional<PlanDevice> absent_device(const std::vector<PlanDevice>& devices) {
  const int gpus = cuda_device_count();
  const auto absent = std::find_if(devices.begin(), devices.end(), [&](const PlanDevice& device) {
    return device.kind == PlanDevice::Kind::Cuda && device.index >= gpus;
  });
  return absent == devices.end() ? std::nullopt : std::optional(*absent);
}

std::set<int> usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::set<int> cores;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.insert(core);
  }
  return cores;
}

void look_at_gpus(const Nvml& nvml, const std::vector<std::pair<std::string, std::string>>& gpus, MachineState& state) {
  const bool used = std::any_of(gpus.begin(), gpus.end(), [&](const auto& gpu) {
    return nvml.state(gpu.second).busy.value_or(0) * 100 > kMostUsed;
  });
  if (used) std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  for (const auto& [name, bus_id] : gpus) look_at_gpu(nvml, name, bus_id, state);
}

MachineState look_at_machine(const std::vector<PlanDevice>& devices) {
  MachineState state;
  if (utsname system = {}; uname(&system) == 0) state.host = system.nodename;
  state.cpu = cpu_model();
  const std::set<int> cores = usable_cores();
  state.cores = cores.empty() ? int(std::thread::hardware_concurrency()) : int(cores.size());
  const double before = worked(cores);
  const auto begin = std::chrono::steady_clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(250));
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (before >= 0) state.busy_cores = (worked(cores) - before) / seconds;
  double load = 0;
  if (getloadavg(&load, 1) == 1) state.load = load;
  if (state.busy_cores > kMostBusy * state.cores) {
    state.faults.push_back(fmt::format("{:.1f} of {} cores do other work", state.busy_cores, state.cores));
  }
  try {
    std::vector<std::pair<std::string, std::string>> gpus;
    for (const PlanDevice& device : devices) {
      if (device.kind == PlanDevice::Kind::Cuda) gpus.emplace_back(to_string(device), cuda_bus_id(device.index));
    }
    if (!gpus.empty()) look_at_gpus(Nvml(), gpus, state);
  } catch (const RunError& error) {
    state.gpus.push_back(std::string("not looked at: ") + error.what());
  }
  state.software = software_of_machine();
  return state;
}

std::vector<std::pair<std::string, std::string>> software_of_machine(const char* nvml) {
  std::vector<std::pair<std::string, std::string>> versions;
  if (utsname system = {}; uname(&system) == 0) {
    versions.emplace_back("kernel", fmt::format("{} {} ({})", system.sysname, system.release, system.machine));
  }
  for (auto& version : library_versions()) versions.push_back(std::move(version));
  try {
    if (std::string driver = Nvml(nvml).driver(); !driver.empty()) versions.emplace_back("nvidia driver", driver);
  } catch (const RunError&) {
    // There is no driver.
  }
  return versions;
}

nlohmann::ordered_json record_of(const MachineState& state) {
  nlohmann::ordered_json record = {{"busy_cores", state.busy_cores}, {"load", state.load}};
  if (!state.gpus.empty()) record["gpus"] = state.gpus;
  if (!state.faults.empty()) record["faults"] = state.faults;
  for (const auto& [name, version] : state.software) record["software"][name] = version;
  return record;
}

}  // namespace arbalest
