// SPDX-License-Identifier: Apache-2.0
#pragma once
// Training throughput over devices × learners: what `arbalest bench scaling` measures and prints.

#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "executor/devices/gpu_meter.h"
#include "executor/session/session.h"
#include "graph/graph.h"

namespace arbalest {

// When a run is warm and how its windows are cut.
struct WindowRule {
  int windows = 5;
  double window_seconds = 1;  // at least: a window ends at a report
  double warmup_seconds = 1;
  int64_t warmup_iterations = 10;  // recording and the first use of every slot are over by then
  // Share by which the rates of two windows in succession differ at most once a run is warm; 0: not looked at. The
  // first two that agree are measured. After kMostUnsettled windows the run counts as warm.
  double settled = 0;
  static constexpr int kMostUnsettled = 10;
};

// Cuts a run's reports into windows that follow one another without gaps.
class WindowMeter {
 public:
  explicit WindowMeter(const WindowRule& rule) : rule_(rule) {}

  // Iterations complete and seconds, both since training began; both grow. What comes after the last window is ignored.
  void add(int64_t iteration, double seconds);
  bool complete() const { return settled_ && rates_.size() == size_t(rule_.windows); }
  const std::vector<double>& rates() const { return rates_; }  // iterations per second, one a complete window
  double warmup_seconds() const { return begin_; }             // until the first window began
  bool agreed() const { return agreed_; }                      // whether rates did, as far as that is looked at

 private:
  void settle();

  WindowRule rule_;
  bool warm_ = false, settled_ = false, agreed_ = true;
  int unsettled_ = 0;      // windows so far, until rates agree
  int64_t iteration_ = 0;  // at which the current window began
  double seconds_ = 0;
  double begin_ = 0, last_begin_ = 0;  // of the first window that counts, and of the one before the current
  std::vector<double> rates_;
};

// Reports of a run on its input and its GPUs, from which the windows are cut once they are known.
class RunReadings {
 public:
  // Counters change every 20 to 100 ms, so that readings closer to each other tell nothing new.
  bool wants_gpus(double seconds) const { return gpus_.empty() || seconds - gpus_.back().seconds >= 0.1; }
  void add(int64_t iteration, double seconds, GpuReading gpus);
  // `late`: share of the batches since the report before. Reports come in order.
  void add(int64_t iteration, double seconds, double late);

  // Each is of what came after `from` seconds; −1: unknown.
  double joules_per_iteration(double from) const;         // between the first reading since then and the last one
  double busy(double from) const;                         // mean of GpuReading::busy
  double late(double from) const;                         // share of the batches
  std::vector<std::string> held_back(double from) const;  // each once

 private:
  struct Gpus {
    int64_t iteration = 0;
    double seconds = 0;
    GpuReading reading;
  };
  struct Input {
    int64_t iteration = 0;
    double seconds = 0, late = 0;
  };
  std::vector<Gpus> gpus_;
  std::vector<Input> input_;
};

struct RateSummary {
  double median = 0, min = 0, max = 0;
};
RateSummary summarize(std::vector<double> rates);  // of at least one

// One combination of devices and learners as measured, or why it was not.
struct ScalingCell {
  std::vector<std::string> devices;  // "cuda:0", …
  int learners = 1;                  // per device
  int64_t batch = 0;                 // per learner
  std::string strategy;              // "sma", …; "none" for a single learner in all
  std::vector<double> windows;       // images/s over all devices
  int64_t planned_peak_bytes = 0;    // of the device that needs most
  int64_t taken_bytes = -1;          // of the device that took most: RunFinished::taken_bytes
  double setup_seconds = 0;
  double warmup_seconds = 0;
  bool settled = true;                 // whether rates agreed when the warm-up ended
  double joules_per_image = 0;         // of all GPUs, over the windows; 0: unknown
  double late_batches = -1;            // share over the windows: InputReport::late; −1: unknown
  double gpu_busy = -1;                // share of the windows in which kernels ran, mean of all GPUs; −1: unknown
  std::vector<std::string> held_back;  // GpuReading::held_back over the windows
  std::string error;                   // one line; "" if measured
  std::exception_ptr failure;          // the error's exception; nullptr if measured or interrupted

  bool measured() const { return error.empty(); }
};

// The sizes asked for, or powers of two up to the pool's size and that size. Throws GraphError for one that is larger.
std::vector<int> device_counts(const std::vector<int>& asked, size_t pool);

// Trains, as run_training() does.
using Train = std::function<void(const Graph&, const SessionOptions&, RunObserver&, std::stop_token)>;

// Makes a run go on until it is stopped: as long as a run can count.
void train_without_end(SessionOptions& session);

// Trains until the windows are measured or `interrupted` is requested. `graph` has no Validate node. Of `session`, the
// devices, learners, precision and report_every count, and whether there is a trace, which is not kept. Any failure
// becomes the cell's error.
ScalingCell measure_cell(const Graph& graph, SessionOptions session, const WindowRule& rule,
                         const std::stop_token& interrupted, const Train& train = run_training);

// Throws the cell's failure, or InterruptedError.
void throw_unless_measured(const ScalingCell& cell);

// The settings that all cells of a sweep share.
struct ScalingSweep {
  std::string graph;                     // its name
  std::string precision;                 // "bf16", …
  size_t pool = 1;                       // devices
  std::optional<double> price_per_hour;  // of the pool
};

// A cell compared with the cells before it. A comparison is absent if its other side was not measured.
struct ScalingRow {
  ScalingCell cell;
  RateSummary images_per_second;
  std::optional<double> speedup;     // against the first cell
  std::optional<double> efficiency;  // a fraction: against as many single devices with as many learners
  std::optional<double> images_per_money_unit;
};

// Cells by the order in which they are measured. A cell on n devices is compared with the one on a single device, so
// that comes first.
class ScalingTable {
 public:
  explicit ScalingTable(ScalingSweep sweep) : sweep_(std::move(sweep)) {}

  ScalingRow add(ScalingCell cell);
  bool any_measured() const;

  std::string heading() const;                    // with a line feed, as the others
  std::string line(const ScalingRow& row) const;  // columns under the heading, or the error
  std::string json(const ScalingRow& row) const;  // one object; null if a comparison is absent

 private:
  ScalingSweep sweep_;
  std::vector<ScalingRow> rows_;
};

}  // namespace arbalest
