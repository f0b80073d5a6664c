#pragma once
// Times convolutions on noise, recorded, as many at a time as will run.

#include <functional>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

#include "ops/cuda/cudnn_graph.h"

namespace arbalest {

class RecordedGraph;  // ops/cuda/recorded_graph.h

// Of one call, as ConvolutionPlan::run() takes them.
struct ConvolutionOperands {
  DeviceBuffer a, b, bias, result, workspace;
};

// Of so many learners at once engines are timed; with more, the same are best, and --learners auto need not time again.
inline constexpr int kMostTimedTogether = 4;

class ConvolutionTimer {
 public:
  using Call = std::function<void(const ConvolutionOperands& with, cudaStream_t stream)>;

  // One of a context lives at a time. Where the device is too full for as many as are concurrent, fewer are timed.
  // Throws RunError where it lacks memory for one. `problem` outlives the timer.
  ConvolutionTimer(CudaContext& context, const ConvolutionProblem& problem, int64_t workspace_bytes);

  // The least µs, of the concurrent calls' time each call's share, dependent calls apart by as much as in a recorded
  // step; 0 where the engine refuses to run or to be recorded. Calls one by one would measure the host instead: a small
  // convolution is shorter than its launch.
  double time(const Call& call) { return time(call, 0, kRepetitions); }

  // Which of the calls is the fastest, and its µs. All are timed briefly, and those that come near the best again,
  // so that no single timing decides.
  struct Fastest {
    int64_t index = -1;  // none runs
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

  ConvolutionOperands operands(int64_t workspace_bytes);
  DeviceBuffer noise(int64_t elements, DataType type);
  // Where a recording of one call takes much longer than `best` (0: none yet): its share of that time. try_time() is 0
  // also where something is done at the engine's first use that cannot be recorded.
  double time(const Call& call, double best, int repetitions);
  double try_time(const Call& call, double best, int repetitions);
  void record(const Call& call, int calls, RecordedGraph& recorded);
  double launch(const RecordedGraph& recorded);

  CudaContext& context_;
  const std::scoped_lock<std::mutex> alone_{context_.timing};
  const ConvolutionProblem& problem_;
  std::vector<ConvolutionOperands> copies_;
  std::vector<Stream> beside_;  // of the copies but the first
  Event start_, stop_;
};

// µs of a kernel of ours, timed as cuDNN's engines are, once for each problem and kind of device: known to later
// processes too. `name` says which kernel and, in its revision, how fast: with another one it is timed again. 0 where
// it could not be timed, which is not kept.
double own_microseconds(CudaContext& context, const std::string& name, const ConvolutionProblem& problem,
                        int64_t workspace_bytes, const ConvolutionTimer::Call& call);

}  // namespace arbalest
