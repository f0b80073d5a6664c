// SPDX-License-Identifier: Apache-2.0
#pragma once
// Samples the use of devices and of the process during a run, for its trace.

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "executor/devices/nvml.h"
#include "executor/plan/plan.h"
#include "executor/trace/trace_recorder.h"

namespace arbalest {

// Gauges of the process, from /proc and the system's clock: cores in use since the previous reading, and resident
// memory.
std::vector<Gauge> process_gauges();

// A thread that reads gauges at intervals: those of the process and, through NVML, those of each GPU among the devices.
// If NVML is not available, the trace's note says why.
class Sampler {
 public:
  // The recorder outlives the sampler. Throws RunError if the system refuses a thread.
  Sampler(const std::vector<PlanDevice>& devices, std::chrono::milliseconds interval, TraceRecorder& trace);
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;
  ~Sampler();  // the recorder has what was measured

 private:
  void add(int32_t device, std::vector<Gauge> gauges);
  void add_gpus(const std::vector<PlanDevice>& devices);
  void work();
  void read();

  const std::chrono::milliseconds interval_;
  TraceRecorder& trace_;
  std::unique_ptr<Nvml> nvml_;
  std::vector<Gauge> gauges_;  // parallel to sampling_.series
  Sampling sampling_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool end_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace arbalest
