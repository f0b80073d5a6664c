// SPDX-License-Identifier: Apache-2.0
#include "executor/devices/nvml.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "base/error.h"

namespace arbalest {
namespace {

// Declarations copied from nvml.h, whose interface is stable. Some CUDA toolkits lack the header; the library comes
// with the driver.
struct Utilization {
  unsigned gpu = 0, memory = 0;  // % of the time since the last look
};
struct Memory {
  unsigned long long total = 0, free = 0, used = 0;  // bytes
};
enum ClockType : int { kSmClock = 1, kMemoryClock = 2 };
constexpr int kSuccess = 0;
// Reasons why clocks are held back.
constexpr unsigned long long kSlowdown = 0x8, kWarm = 0x20, kHot = 0x40, kPowerBrake = 0x80;

}  // namespace

struct nvmlDevice_st;
using Handle = nvmlDevice_st*;

struct Nvml::Functions {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  const char* (*error_string)(int) = nullptr;
  int (*handle)(const char*, Handle*) = nullptr;
  int (*utilization)(Handle, Utilization*) = nullptr;
  int (*memory)(Handle, Memory*) = nullptr;
  int (*power)(Handle, unsigned*) = nullptr;        // mW
  int (*power_limit)(Handle, unsigned*) = nullptr;  // mW
  int (*clock)(Handle, int, unsigned*) = nullptr;   // MHz
  int (*most_clock)(Handle, int, unsigned*) = nullptr;
  // Older drivers and GPUs lack these.
  int (*energy)(Handle, unsigned long long*) = nullptr;  // mJ
  int (*held_back)(Handle, unsigned long long*) = nullptr;
  int (*driver)(char*, unsigned) = nullptr;

  explicit Functions(void* library) {
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr) throw RunError(fmt::format("the library of NVML has no {}", name));
    };
    find(init, "nvmlInit_v2");
    find(shutdown, "nvmlShutdown");
    find(error_string, "nvmlErrorString");
    find(handle, "nvmlDeviceGetHandleByPciBusId_v2");
    find(utilization, "nvmlDeviceGetUtilizationRates");
    find(memory, "nvmlDeviceGetMemoryInfo");
    find(power, "nvmlDeviceGetPowerUsage");
    find(power_limit, "nvmlDeviceGetEnforcedPowerLimit");
    find(clock, "nvmlDeviceGetClockInfo");
    find(most_clock, "nvmlDeviceGetMaxClockInfo");
    const auto find_if_there = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    };
    find_if_there(energy, "nvmlDeviceGetTotalEnergyConsumption");
    find_if_there(held_back, "nvmlDeviceGetCurrentClocksThrottleReasons");
    find_if_there(driver, "nvmlSystemGetDriverVersion");
  }
};

Nvml::Nvml(const char* library) {
  library_ = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (library_ == nullptr) throw RunError(dlerror());
  try {
    functions_ = std::make_unique<Functions>(library_);
    const int status = functions_->init();
    if (status != kSuccess) throw RunError(fmt::format("NVML: {}", functions_->error_string(status)));
  } catch (...) {
    dlclose(library_);
    throw;
  }
}

Nvml::~Nvml() {
  functions_->shutdown();
  dlclose(library_);
}

Handle Nvml::handle(const std::string& bus_id) const {
  Handle gpu = nullptr;
  const int status = functions_->handle(bus_id.c_str(), &gpu);
  if (status != kSuccess) throw RunError(fmt::format("NVML: {}: {}", bus_id, functions_->error_string(status)));
  return gpu;
}

std::string Nvml::driver() const {
  char version[81] = "";  // the last byte stays 0
  const bool known = functions_->driver && functions_->driver(version, sizeof version - 1) == kSuccess;
  return known ? version : "";
}

GpuState Nvml::state(const std::string& bus_id) const {
  const Handle gpu = handle(bus_id);
  GpuState state;
  unsigned long long value = 0;
  if (functions_->energy && functions_->energy(gpu, &value) == kSuccess) state.joules = double(value) / 1000;
  if (Utilization used; functions_->utilization(gpu, &used) == kSuccess) state.busy = double(used.gpu) / 100;
  if (!functions_->held_back || functions_->held_back(gpu, &value) != kSuccess) return state;
  if ((value & (kWarm | kHot)) != 0) state.held_back.emplace_back("temperature");
  if ((value & kPowerBrake) != 0) state.held_back.emplace_back("power");
  if ((value & kSlowdown) != 0 && state.held_back.empty()) state.held_back.emplace_back("its hardware");
  return state;
}

std::vector<Gauge> Nvml::gauges(const std::string& bus_id) const {
  const Functions& nvml = *functions_;
  const Handle gpu = handle(bus_id);
  const auto number = [gpu](auto function, auto... before) -> std::optional<double> {
    unsigned value = 0;
    return function(gpu, before..., &value) == kSuccess ? std::optional<double>(value) : std::nullopt;
  };
  Memory memory;
  const bool has_memory = nvml.memory(gpu, &memory) == kSuccess;
  std::vector<Gauge> gauges = {
      {"GPU utilisation", "%", 100,
       [&nvml, gpu]() -> std::optional<double> {
         Utilization used;
         return nvml.utilization(gpu, &used) == kSuccess ? std::optional<double>(used.gpu) : std::nullopt;
       }},
      {"GPU memory", "B", has_memory ? double(memory.total) : 0,
       [&nvml, gpu]() -> std::optional<double> {
         Memory now;
         return nvml.memory(gpu, &now) == kSuccess ? std::optional<double>(double(now.used)) : std::nullopt;
       }},
      {"GPU power", "W", number(nvml.power_limit).value_or(0) / 1000,
       [&nvml, number]() -> std::optional<double> {
         const std::optional<double> milliwatts = number(nvml.power);
         return milliwatts ? std::optional(*milliwatts / 1000) : std::nullopt;
       }},
      {"GPU clock", "MHz", number(nvml.most_clock, kSmClock).value_or(0),
       [&nvml, number] { return number(nvml.clock, kSmClock); }},
      {"GPU memory clock", "MHz", number(nvml.most_clock, kMemoryClock).value_or(0),
       [&nvml, number] { return number(nvml.clock, kMemoryClock); }}};
  std::erase_if(gauges, [](const Gauge& gauge) { return !gauge.read(); });
  return gauges;
}

}  // namespace arbalest
