// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reads a GPU's usage from NVIDIA's management library. The library comes with the driver and is opened at run time, so
// neither a build nor a machine needs it.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace arbalest {

// Something that can be measured at any time.
struct Gauge {
  std::string name;  // "GPU power"
  std::string unit;  // "W"
  double most = 0;   // what it cannot exceed; 0: unknown
  std::function<std::optional<double>()> read;
};

// A GPU's state, as far as its driver tells.
struct GpuState {
  std::optional<double> joules;        // used since the driver was loaded
  std::optional<double> busy;          // share of the last second, or less, in which a kernel ran
  std::vector<std::string> held_back;  // why its clocks are lowered against its will: "temperature", "power"
};

class Nvml {
 public:
  // Throws RunError that says why there is none: no such library, no driver.
  explicit Nvml(const char* library = "libnvidia-ml.so.1");
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml();

  // Utilisation, memory in use, power, clocks of the GPU with this PCI bus id ("0000:1b:00.0"): those of them that it
  // tells. They must not outlive the library. Throws RunError if it knows no such GPU.
  std::vector<Gauge> gauges(const std::string& bus_id) const;

  std::string driver() const;  // its version, "580.65.06"; "": unknown

  // Throws RunError if it knows no such GPU.
  GpuState state(const std::string& bus_id) const;

 private:
  struct Functions;
  struct nvmlDevice_st* handle(const std::string& bus_id) const;
  std::unique_ptr<Functions> functions_;
  void* library_ = nullptr;
};

}  // namespace arbalest
