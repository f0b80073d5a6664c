// SPDX-License-Identifier: Apache-2.0
#pragma once
// Times convolutions on noise, recorded, with as many running at the same time as in training.

#include <functional>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

#include "ops/cuda/cudnn_graph.h"

namespace arbalest {

class RecordedGraph;  // ops/cuda/recorded_graph.h

// The most learners for which engines are timed. With more learners the same engines are the best, and --learners auto
// need not time again.
inline constexpr int kMostTimedTogether = 4;

class ConvolutionTimer {
 public:
  using Call = std::function<void(const ConvolutionCall&)>;  // there is a bias for every Kind

  // A context has at most one timer at a time. If the device lacks memory for all concurrent calls, fewer are timed.
  // Throws RunError if it lacks memory for one. `problem` must outlive the timer.
  ConvolutionTimer(CudaContext& context, const ConvolutionProblem& problem, int64_t workspace_bytes);

  // The least time in µs: the time of concurrent calls divided by their number. Consecutive calls depend on each other
  // as in a recorded step. 0 if the engine refuses to run or to be recorded. Timing single calls would measure the
  // host, because a small convolution is shorter than its launch.
  double time(const Call& call) { return time(call, 0, kRepetitions); }

  // The fastest call and its µs. All are timed briefly, then those near the best again, so that no single timing
  // decides.
  struct Fastest {
    int64_t index = -1;  // −1: no call runs
    double microseconds = 0;
  };
  Fastest fastest(const std::vector<Call>& calls);

 private:
  static constexpr int kRepetitions = 3;  // timings; the least counts

  struct Destroy {
    void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
    void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
  };
  using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, Destroy>;
  using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, Destroy>;

  struct Operands {
    DeviceBuffer a, b, bias, result, workspace;
  };

  Operands operands(int64_t workspace_bytes);
  ConvolutionCall call_with(const Operands& operands, cudaStream_t stream) const;
  DeviceBuffer noise(int64_t elements, DataType type);
  // Both return µs, or 0 on failure. If a recording of one call takes much longer than `best` (0: none yet), its share
  // of that time is returned without further timings. The result of try_time() is 0 also if the engine's first use does
  // something that cannot be recorded.
  double time(const Call& call, double best, int repetitions);
  double try_time(const Call& call, double best, int repetitions);
  void record(const Call& call, int calls, RecordedGraph& recorded);
  double launch(const RecordedGraph& recorded);

  CudaContext& context_;
  const std::scoped_lock<std::mutex> alone_{context_.timing};
  const ConvolutionProblem& problem_;
  std::vector<Operands> copies_;
  std::vector<Stream> beside_;  // of the copies but the first
  Event start_, stop_;
};

// Time in µs of a kernel of ours, measured as for cuDNN's engines, once for each problem and kind of device, and kept
// for later processes. `name` identifies the kernel and its revision: with another name it is timed again. 0 if it
// could not be timed, which is not kept.
double own_microseconds(CudaContext& context, const std::string& name, const ConvolutionProblem& problem,
                        int64_t workspace_bytes, const ConvolutionTimer::Call& call);

}  // namespace arbalest
