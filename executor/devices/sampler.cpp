// SPDX-License-Identifier: Apache-2.0
#include "executor/devices/sampler.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/error.h"
#include "base/memory/host_memory.h"
#include "base/time/clock.h"
#include "executor/devices/device.h"
#include "executor/devices/threads.h"

namespace arbalest {
namespace {

constexpr size_t kMostSamples = size_t{1} << 17;  // 3.6 hours at ten a second; then the older half goes

// Cores that the process's threads have kept busy since the last call, on average.
class CoresInUse {
 public:
  double operator()() {
    const int64_t cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID), wall = clock_ns(CLOCK_MONOTONIC);
    const double cores = wall > wall_ ? double(cpu - cpu_) / double(wall - wall_) : 0;
    cpu_ = cpu;
    wall_ = wall;
    return cores;
  }

 private:
  int64_t cpu_ = clock_ns(CLOCK_PROCESS_CPUTIME_ID), wall_ = clock_ns(CLOCK_MONOTONIC);
};

std::optional<double> resident_bytes() {
  std::ifstream file("/proc/self/statm");  // in pages: the program's size, what of it is resident, …
  double size = 0, resident = 0;
  if (!(file >> size >> resident)) return std::nullopt;
  return resident * double(sysconf(_SC_PAGESIZE));
}

}  // namespace

std::vector<Gauge> process_gauges() {
  return {{"CPU in use", "cores", double(std::thread::hardware_concurrency()), CoresInUse()},
          {"process memory", "B", double(host_memory()), resident_bytes}};
}

Sampler::Sampler(const std::vector<PlanDevice>& devices, std::chrono::milliseconds interval, TraceRecorder& trace)
    : interval_(interval), trace_(trace) {
  sampling_.interval_ms = interval.count();
  add_gpus(devices);
  add(kNone, process_gauges());
  thread_ = start_thread("sampling devices", [this] { work(); });
}

Sampler::~Sampler() {
  {
    const std::scoped_lock lock(mutex_);
    end_ = true;
  }
  ended_.notify_one();
  thread_.join();
  trace_.set_sampling(std::move(sampling_));
}

void Sampler::add(int32_t device, std::vector<Gauge> gauges) {
  for (Gauge& gauge : gauges) {
    sampling_.series.push_back({gauge.name, device, gauge.unit, gauge.most, {}});
    gauges_.push_back(std::move(gauge));
  }
}

void Sampler::add_gpus(const std::vector<PlanDevice>& devices) {
  try {
    for (size_t i = 0; i < devices.size(); ++i) {
      if (devices[i].kind != PlanDevice::Kind::Cuda) continue;
      if (!nvml_) nvml_ = std::make_unique<Nvml>();
      add(int32_t(i), nvml_->gauges(cuda_bus_id(devices[i].index)));
    }
  } catch (const RunError& error) {
    sampling_.note = std::string("GPUs were not sampled: ") + error.what();
  }
}

void Sampler::work() {
  auto next = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  for (;;) {
    next = std::max(next + interval_, std::chrono::steady_clock::now());
    if (ended_.wait_until(lock, next, [this] { return end_; })) return;
    read();
  }
}

// Reads all gauges. If a gauge fails, its previous value is kept.
void Sampler::read() {
  if (sampling_.at.size() == kMostSamples) {
    const auto drop_half = [](auto& list) { list.erase(list.begin(), list.begin() + kMostSamples / 2); };
    drop_half(sampling_.at);
    for (SampleSeries& series : sampling_.series) drop_half(series.values);
  }
  sampling_.at.push_back(trace_.now());
  for (size_t i = 0; i < gauges_.size(); ++i) {
    std::vector<double>& values = sampling_.series[i].values;
    values.push_back(gauges_[i].read().value_or(values.empty() ? 0 : values.back()));
  }
}

}  // namespace arbalest
