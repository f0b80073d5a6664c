// SPDX-License-Identifier: Apache-2.0
#include "executor/training/run_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <exception>
#include <optional>

#include "base/plain_message.h"
#include "executor/devices/sampler.h"
#include "executor/trace/trace_recorder.h"
#include "executor/training/utc_time.h"
#include "graph/op.h"

namespace arbalest {

RunTrace::RunTrace(const SessionOptions& options) : options_(options) {
  run_.started = utc_time(std::time(nullptr));
}

RunTrace::~RunTrace() = default;

void RunTrace::drop() {
  recorder_.reset();
}

// Which run it is, and which part of it the segment is.
void RunTrace::describe(const Segment& segment, const Prepared& prepared) {
  run_.strategy = prepared.request.strategy.name;
  run_.learners = prepared.request.learners;
  run_.iterations = segment.position().iteration;
  run_.first = segment.clock().times().from.iteration;
  run_.command = options_.command;
  run_.source = string_attribute(*prepared.graph.find_op("arbalest.Prefetch"), "source");
  run_.precision = name_of(options_.numerics.precision);
  run_.batch = prepared.program.training().batch;
  run_.models = device_models(prepared.request.devices);
}

void RunTrace::run(Segment& segment, const Prepared& prepared, const std::atomic<bool>& interrupted,
                   const SegmentRests& rests) {
  std::optional<Sampler> sampler;
  if (!options_.files.trace.empty()) {
    recorder_ = std::make_unique<TraceRecorder>(segment.plan());
    describe(segment, prepared);
    const std::chrono::milliseconds interval(options_.execution.sample_ms);
    if (interval.count() > 0) sampler.emplace(segment.plan().devices, interval, *recorder_);
  }
  segment.run(interrupted, recorder_.get(), rests);
}

void RunTrace::finish(Segment& segment, RunFinished& end) {
  if (!recorder_ || end.iteration == 0) return;
  try {  // the rest of the trace is of use without these times
    segment.time_alone(*recorder_);
    segment.time_nodes(*recorder_);
  } catch (const RunError& error) {
    warn(fmt::format("how long tasks or layers take alone is not in the trace: {}", error.what()));
  }
  run_.ended = end.reason;
  run_.message = end.interrupted_by;
  run_.ended_after = end.iteration;
  try {
    write();
  } catch (const std::exception& error) {
    end.trace_error = plain_message(error);
    warn(end.trace_error);
  }
  end.trace = written_;
}

void RunTrace::write() {
  recorder_->set_run(run_);
  recorder_->write(options_.files.trace);
  written_ = options_.files.trace;
}

void RunTrace::write_failed() noexcept {
  if (!recorder_) return;
  try {
    run_.ended = RunEnd::Failed;
    try {
      throw;
    } catch (const std::exception& error) {
      const auto* task = dynamic_cast<const TaskError*>(&error);
      run_.ended_after = task ? task->iteration : -1;
      run_.message = plain_message(error);
      std::replace(run_.message.begin(), run_.message.end(), '\n', ' ');
    }
    write();
  } catch (const std::exception& error) {
    warn(error.what());
  }
}

std::vector<std::string> device_models(const std::vector<PlanDevice>& devices) {
  std::vector<std::string> models;
  for (const PlanDevice& device : devices) {
    models.push_back(device.kind == PlanDevice::Kind::Cuda ? cuda_device_model(device.index) : cpu_model());
  }
  return models;
}

}  // namespace arbalest
