// SPDX-License-Identifier: Apache-2.0
#include "executor/training/run_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <exception>
#include <filesystem>
#include <optional>

#include "base/plain_message.h"
#include "base/process.h"
#include "executor/devices/sampler.h"
#include "executor/trace/trace_recorder.h"
#include "executor/training/rank_traces.h"
#include "executor/training/utc_time.h"
#include "executor/world/part.h"
#include "graph/op.h"
#include "ops/names.h"

namespace arbalest {
namespace {

// The file of a rank's own part of the trace.
std::string path_of_part(const std::string& trace, int rank) {
  const std::filesystem::path path(trace);
  const std::string name = path.filename().string();
  const size_t dot = std::min(name.find('.', 1), name.size());
  return path.parent_path() / fmt::format("{}.rank{}{}", name.substr(0, dot), rank, name.substr(dot));
}

}  // namespace

RunTrace::RunTrace(const SessionOptions& options) : options_(options) {
  const std::string& trace = options_.files.trace;
  std::error_code ignored;  // an earlier run that failed may have left this rank's part
  if (options_.ranks && !trace.empty()) std::filesystem::remove(path_of_part(trace, options_.ranks->rank()), ignored);
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
  run_.source = string_attribute(*prepared.graph.find_op(op::Prefetch), "source");
  run_.precision = name_of(options_.numerics.precision);
  run_.batch = prepared.program.training().batch;
  run_.models = device_models(segment.plan().devices);
}

void RunTrace::run(Segment& segment, const Prepared& prepared, const std::stop_token& stop, const SegmentRests& rests) {
  std::optional<Sampler> sampler;
  if (!options_.files.trace.empty()) {
    if (options_.ranks) began_ = options_.ranks->read_clock();
    recorder_ = std::make_unique<TraceRecorder>(segment.plan());
    describe(segment, prepared);
    const std::chrono::milliseconds interval(options_.execution.sample_ms);
    if (interval.count() > 0) sampler.emplace(segment.plan().devices, interval, *recorder_);
  }
  segment.run(stop, recorder_.get(), rests);
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
  run_.taken_bytes = end.taken_bytes;
  run_.timed_engines = timed_engines();
  std::vector<TraceFile> traces = options_.ranks ? traces_of_all(*options_.ranks) : std::vector{own_trace()};
  if (traces.empty()) return;
  try {
    write(traces.size() == 1 ? traces.front() : joined(std::move(traces)), options_.files.trace);
  } catch (const std::exception& error) {
    end.trace_error = plain_message(error);
    warn(end.trace_error);
  }
  end.trace = written_;
}

TraceFile RunTrace::own_trace() {
  recorder_->set_run(run_);
  return recorder_->collect();
}

// At rank 0 the traces of all ranks, whose times are those of rank 0's clock since the first rank began to record;
// elsewhere none. Between two readings of the clocks these are taken to drift apart evenly.
std::vector<TraceFile> RunTrace::traces_of_all(Ranks& ranks) {
  const Ranks::ClockReading ended = ranks.read_clock();
  const int64_t apart = began_.there - began_.here, took = std::max<int64_t>(1, ended.here - began_.here);
  const double drift = double(ended.there - ended.here - apart) / double(took);
  const auto there = [&](int64_t here) { return here + apart + std::llround(drift * double(here - began_.here)); };
  TraceFile mine = own_trace();
  mine.run.clock_error = std::max(began_.error, ended.error);
  const int64_t start = recorder_->start();
  move_times(mine, [&](int64_t time) { return there(start + time) - there(start); });
  PartWriter part;
  part.number(there(start));
  part.array(packed(mine));
  std::vector<TraceFile> traces;
  std::vector<int64_t> starts;
  for (const std::string& each : ranks.gather("trace", std::move(part.bytes))) {
    PartReader in(each);
    starts.push_back(in.number<int64_t>());
    traces.push_back(unpacked(in.text()));
  }
  for (size_t i = 0; i < traces.size(); ++i) {
    const int64_t later = starts[i] - *std::min_element(starts.begin(), starts.end());
    move_times(traces[i], [later](int64_t time) { return time + later; });
  }
  return traces;
}

void RunTrace::write(const TraceFile& trace, const std::string& path) {
  write_trace(trace, path);
  written_ = path;
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
    const bool first = !options_.ranks || options_.ranks->first();
    const std::string& whole = options_.files.trace;
    write(own_trace(), first ? whole : path_of_part(whole, options_.ranks->rank()));
  } catch (const std::exception& error) {
    warn(error.what());
  }
}

std::vector<std::string> device_models(const std::vector<PlanDevice>& devices) {
  std::vector<std::string> models;
  for (const PlanDevice& device : devices) {
    models.push_back(device.kind == PlanDevice::Kind::Cuda ? cuda_device_model(device.index).name : cpu_model());
  }
  return models;
}

}  // namespace arbalest
