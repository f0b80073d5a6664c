// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/convolution_timer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops/cuda/convolution_choices.h"
#include "ops/cuda/recorded_graph.h"

namespace arbalest {
namespace {

using Kind = ConvolutionProblem::Kind;

constexpr int kCallsPerTiming = 8;    // at most
constexpr double kLongTiming = 300;   // µs of calls; a longer timing would tell no more
constexpr double kHopeless = 2;       // times the best: only one call of so slow an engine is timed
constexpr int kFirstRepetitions = 2;  // since other threads may hold up one
constexpr double kLaunching = 40;     // µs that a recording of one call may take longer than a call in one of several

cudaStream_t timer_stream() {
  cudaStream_t stream = nullptr;
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

cudaEvent_t make_event() {
  cudaEvent_t event = nullptr;
  CUDA_CHECK(cudaEventCreate(&event));
  return event;
}

}  // namespace

ConvolutionTimer::ConvolutionTimer(CudaContext& context, const ConvolutionProblem& problem, int64_t workspace_bytes)
    : context_(context), problem_(problem), start_(make_event()), stop_(make_event()) {
  copies_.push_back(operands(workspace_bytes));
  try {
    while (int(copies_.size()) < problem.concurrent) {
      beside_.emplace_back(timer_stream());
      copies_.push_back(operands(workspace_bytes));
    }
  } catch (const RunError&) {
    cudaGetLastError();
    if (copies_.size() > 1) copies_.pop_back();  // engines and recordings need memory too
  }
}

ConvolutionTimer::Operands ConvolutionTimer::operands(int64_t workspace_bytes) {
  const bool grad_input = problem_.kind == Kind::GradInput, grad_weight = problem_.kind == Kind::GradWeight;
  return {noise(element_count(grad_input ? problem_.y : problem_.x), problem_.type),
          noise(element_count(grad_weight ? problem_.y : problem_.w), problem_.type),
          noise(problem_.y[1], DataType::Float32),
          DeviceBuffer(element_count(problem_.output_shape()) * int64_t(size_of(problem_.output_type))),
          DeviceBuffer(workspace_bytes)};
}

ConvolutionCall ConvolutionTimer::call_with(const Operands& operands, cudaStream_t stream) const {
  return {stream,
          context_.model.multiprocessors_for(problem_.concurrent),
          operands.a.data(),
          operands.b.data(),
          static_cast<const float*>(operands.bias.data()),
          operands.result.data(),
          operands.workspace.data()};
}

ConvolutionTimer::Fastest ConvolutionTimer::fastest(const std::vector<Call>& calls) {
  constexpr double kNear = 1.25;  // times the best
  Fastest best, again;
  const auto take = [](Fastest& of, size_t i, double microseconds) {
    if (microseconds > 0 && (of.index < 0 || microseconds < of.microseconds)) of = {int64_t(i), microseconds};
  };
  std::vector<double> first;
  for (size_t i = 0; i < calls.size(); ++i) {
    first.push_back(time(calls[i], best.microseconds, kFirstRepetitions));
    take(best, i, first[i]);
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    if (first[i] > 0 && first[i] <= kNear * best.microseconds) take(again, i, time(calls[i]));
  }
  return again.index >= 0 ? again : best;
}

double ConvolutionTimer::time(const Call& call, double best, int repetitions) {
  if (const double microseconds = try_time(call, best, repetitions); microseconds > 0) return microseconds;
  try {
    call(call_with(copies_[0], context_.stream));
  } catch (const RunError&) {
    cudaGetLastError();
    return 0;
  }
  CUDA_CHECK(cudaStreamSynchronize(context_.stream));
  return try_time(call, best, repetitions);
}

double ConvolutionTimer::try_time(const Call& call, double best, int repetitions) {
  const cudaStream_t stream = context_.stream;
  const double copies = double(copies_.size());
  RecordedGraph once, recorded;
  try {
    record(call, 1, once);
    launch(once);  // the first time what it needs is brought to the device
    const double hopeless = best > 0 ? kLaunching + kHopeless * best * copies : HUGE_VAL;
    double alone = launch(once);
    if (alone > hopeless) alone = std::min(alone, launch(once));  // whatever else held up the first
    if (alone > hopeless) return alone / copies;
    const int calls = std::clamp(int(kLongTiming * copies / std::max(alone, 1.0)), 1, kCallsPerTiming);
    record(call, calls, recorded);
    CUDA_CHECK(cudaGraphUpload(recorded.graph(), stream));
    double least = 0;
    for (int i = 0; i < repetitions; ++i) {
      const double each = launch(recorded) / double(calls) / copies;
      if (i == 0 || each < least) least = each;
    }
    return least;
  } catch (const RunError&) {
    cudaGetLastError();
    CUDA_CHECK(cudaStreamSynchronize(stream));  // a fault of the device, rather than a refusal, ends here
    return 0;
  }
}

// Its µs.
double ConvolutionTimer::launch(const RecordedGraph& recorded) {
  CUDA_CHECK(cudaEventRecord(start_.get(), context_.stream));
  CUDA_CHECK(cudaGraphLaunch(recorded.graph(), context_.stream));
  CUDA_CHECK(cudaEventRecord(stop_.get(), context_.stream));
  CUDA_CHECK(cudaEventSynchronize(stop_.get()));
  float milliseconds = 0;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start_.get(), stop_.get()));
  return double(milliseconds) * 1000;
}

// All copies' calls, each copy on a stream of its own. Calls outside of a recording would take launch memory, without
// which training is faster: docs/design.md.
void ConvolutionTimer::record(const Call& call, int calls, RecordedGraph& recorded) {
  const cudaStream_t stream = context_.stream;
  recorded.record(stream, [&] {
    CUDA_CHECK(cudaEventRecord(start_.get(), stream));
    for (size_t copy = 0; copy < copies_.size(); ++copy) {
      const cudaStream_t own = copy == 0 ? stream : beside_[copy - 1].get();
      if (copy > 0) CUDA_CHECK(cudaStreamWaitEvent(own, start_.get(), 0));
      for (int k = 0; k < calls; ++k) call(call_with(copies_[copy], own));
      if (copy == 0) continue;
      CUDA_CHECK(cudaEventRecord(stop_.get(), own));
      CUDA_CHECK(cudaStreamWaitEvent(stream, stop_.get(), 0));
    }
  });
}

// Random numbers in [-1, 1): on zeros matrix units draw less power and run faster than they will.
DeviceBuffer ConvolutionTimer::noise(int64_t elements, DataType type) {
  DeviceBuffer buffer(elements * int64_t(size_of(type)));
  constexpr int64_t kBlock = 1 << 16;  // elements drawn; the rest repeats them
  std::vector<float> values(size_t(std::min(elements, kBlock)));
  uint32_t state = 0x9E3779B9u;
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = float(state >> 8) * 0x1p-23f - 1.0f;
  }
  std::vector<bfloat16> lowered;
  if (type == DataType::Bfloat16) {
    for (const float value : values) lowered.push_back(bfloat16(value));
  }
  const void* from = type == DataType::Bfloat16 ? static_cast<const void*>(lowered.data()) : values.data();
  const auto size = int64_t(size_of(type));
  auto* memory = static_cast<char*>(buffer.data());
  const auto drawn = int64_t(values.size());
  const cudaStream_t stream = context_.stream;
  CUDA_CHECK(cudaMemcpyAsync(memory, from, size_t(drawn * size), cudaMemcpyHostToDevice, stream));
  RecordedGraph repeats;
  repeats.record(stream, [&] {
    for (int64_t filled = drawn; filled < elements; filled *= 2) {
      const int64_t count = std::min(filled, elements - filled);
      CUDA_CHECK(
          cudaMemcpyAsync(memory + filled * size, memory, size_t(count * size), cudaMemcpyDeviceToDevice, stream));
    }
  });
  CUDA_CHECK(cudaGraphLaunch(repeats.graph(), stream));
  CUDA_CHECK(cudaStreamSynchronize(stream));  // `values` goes away
  return buffer;
}

double own_microseconds(CudaContext& context, const std::string& name, const ConvolutionProblem& problem,
                        int64_t workspace_bytes, const ConvolutionTimer::Call& call) {
  const auto choose = [&]() -> ConvolutionChoice {
    ConvolutionTimer timer(context, problem, workspace_bytes);
    const double microseconds = timer.time(call);
    return microseconds > 0 ? ConvolutionChoice{0, name, microseconds} : ConvolutionChoice();
  };
  const std::string key = fmt::format("{} {} {} for {}", context.model.name, name, problem.key(),
                                      context.model.multiprocessors_for(problem.concurrent));
  return ConvolutionChoices::of_process()
      .find(
          key, [](const ConvolutionChoice&) { return true; }, choose)
      .microseconds;
}

}  // namespace arbalest
