// The only file that includes cudnn-frontend, which takes long to compile.

#include "ops/cudnn_graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>

namespace arbalest {
namespace {

namespace fe = cudnn_frontend;
using Kind = ConvolutionProblem::Kind;

// Identifiers of the operands in every graph.
enum Uid : int64_t { kA = 1, kB = 2, kBias = 3, kResult = 4 };

constexpr int kCandidates = 12;  // engines tried, in the heuristics' order
constexpr int kRepetitions = 4;  // timings of a candidate; the least counts
constexpr int kCallsPerTiming = 8;
constexpr double kLongCall = 300;  // µs, from which on one call is enough to tell

fe::DataType_t frontend_type(DataType type) {
  switch (type) {
    case DataType::Float32: return fe::DataType_t::FLOAT;
    case DataType::Bfloat16: return fe::DataType_t::BFLOAT16;
    default: throw RunError(fmt::format("cuDNN convolutions take float and bfloat16; found {}", name_of(type)));
  }
}

// Of a channels-last tensor, for its logical extents.
std::vector<int64_t> channels_last_strides(const Shape& shape) {
  const int64_t c = shape[1], h = shape[2], w = shape[3];
  return {c * h * w, 1, w * c, c};
}

struct Choice {
  int64_t index = -1;  // among the heuristics' proposals; -1: no engine
  std::string engine;
  double microseconds = 0;
};

// What was measured, for the whole process: contexts of other lanes and devices of the same kind need not measure
// again.
struct Choices {
  std::mutex mutex;  // held while timing, too: concurrent timings would disturb each other
  std::unordered_map<std::string, Choice> of_problem;
};

Choices& choices() {
  static Choices choices;
  return choices;
}

class Stream {
 public:
  Stream() { CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { CUDA_CHECK(cudaEventCreate(&event_)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// What a stream records between the start of a capture and end().
class RecordedGraph {
 public:
  RecordedGraph() = default;
  ~RecordedGraph() {
    if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
  }
  RecordedGraph(const RecordedGraph&) = delete;
  RecordedGraph& operator=(const RecordedGraph&) = delete;

  // False where the stream was not recording, or something in between cannot be recorded.
  bool end(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return cudaStreamIsCapturing(stream, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone &&
           cudaStreamEndCapture(stream, &graph_) == cudaSuccess && graph_ != nullptr &&
           cudaGraphInstantiate(&executable_, graph_, 0) == cudaSuccess;
  }
  cudaGraphExec_t executable() const { return executable_; }

 private:
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace

std::string ConvolutionProblem::key() const {
  return fmt::format("{} {}>{} x{} w{} y{} s{} d{} p{}+{} {}{} {} {}", int(kind), int(type), int(output_type), x, w, y,
                     stride, dilation, pad_begin, pad_end, tf32 ? "tf32" : "", deterministic ? "deterministic" : "",
                     workspace_limit, concurrent);
}

const Shape& ConvolutionProblem::output_shape() const {
  return kind == Kind::GradInput ? x : kind == Kind::GradWeight ? w : y;
}

struct ConvolutionPlan::State {
  fe::graph::Graph graph;
  int64_t index = 0;  // of the engine
  bool has_bias = false;
  std::mutex mutex;  // the frontend keeps scratch in its graph
};

ConvolutionPlan::ConvolutionPlan() : state_(std::make_unique<State>()) {}
ConvolutionPlan::~ConvolutionPlan() = default;

void ConvolutionPlan::run(cudnnHandle_t handle, cudaStream_t stream, const void* a, const void* b, const void* bias,
                          void* result, void* workspace) const {
  CUDNN_CHECK(cudnnSetStream(handle, stream));
  std::unordered_map<int64_t, void*> operands = {
      {kA, const_cast<void*>(a)}, {kB, const_cast<void*>(b)}, {kResult, result}};
  if (state_->has_bias) operands.emplace(kBias, const_cast<void*>(bias));
  const std::scoped_lock lock(state_->mutex);
  auto status = state_->graph.execute_plan_at_index(handle, operands, workspace, state_->index);
  if (status.is_bad()) throw RunError(fmt::format("cuDNN convolution ({}): {}", engine_, status.get_message()));
}

// Makes the plan of one problem for one context.
class ConvolutionPlanner {
 public:
  ConvolutionPlanner(CudaContext& context, const ConvolutionProblem& problem)
      : context_(context), problem_(problem), plan_(std::make_shared<ConvolutionPlan>()) {}

  std::shared_ptr<const ConvolutionPlan> make() {
    plan_->state_->has_bias = problem_.kind == Kind::ForwardBias;
    if (!propose()) return nullptr;
    const std::string key = context_.device_name + ' ' + problem_.key();
    Choice choice;
    {
      Choices& known = choices();
      const std::lock_guard lock(known.mutex);
      const auto [entry, added] = known.of_problem.try_emplace(key);
      if (added) {
        try {
          entry->second = choose();
        } catch (...) {
          known.of_problem.erase(entry);
          throw;
        }
      }
      choice = entry->second;
    }
    if (choice.index < 0) return nullptr;
    // The heuristics repeat themselves on devices of one kind; where they do not, choose anew.
    if (engine_at(choice.index) != choice.engine || !build(choice.index)) choice = choose();
    if (choice.index < 0) return nullptr;
    plan_->state_->index = choice.index;
    plan_->workspace_bytes_ = workspace_at(choice.index);
    plan_->microseconds_ = choice.microseconds;
    plan_->engine_ = choice.engine;
    return plan_;
  }

 private:
  fe::graph::Graph& graph() { return plan_->state_->graph; }

  std::shared_ptr<fe::graph::Tensor_attributes> tensor(const char* name, Uid uid, const Shape& shape, DataType type) {
    return graph().tensor(fe::graph::Tensor_attributes()
                              .set_name(name)
                              .set_uid(uid)
                              .set_dim(shape)
                              .set_stride(channels_last_strides(shape))
                              .set_data_type(frontend_type(type)));
  }

  template <typename Attributes>
  Attributes convolution() const {
    const auto list = [](const std::array<int64_t, 2>& pair) { return std::vector<int64_t>(pair.begin(), pair.end()); };
    Attributes attributes;
    attributes.set_pre_padding(list(problem_.pad_begin))
        .set_post_padding(list(problem_.pad_end))
        .set_stride(list(problem_.stride))
        .set_dilation(list(problem_.dilation));
    return attributes;
  }

  // The result tensor of the operation graph.
  std::shared_ptr<fe::graph::Tensor_attributes> operation() {
    switch (problem_.kind) {
      case Kind::Forward:
      case Kind::ForwardBias: {
        auto y =
            graph().conv_fprop(tensor("x", kA, problem_.x, problem_.type), tensor("w", kB, problem_.w, problem_.type),
                               convolution<fe::graph::Conv_fprop_attributes>());
        if (problem_.kind == Kind::Forward) return y;
        y->set_dim(problem_.y).set_stride(channels_last_strides(problem_.y));
        return graph().pointwise(y, tensor("bias", kBias, {1, problem_.y[1], 1, 1}, DataType::Float32),
                                 fe::graph::Pointwise_attributes().set_mode(fe::PointwiseMode_t::ADD));
      }
      case Kind::GradInput:
        return graph().conv_dgrad(tensor("dy", kA, problem_.y, problem_.type),
                                  tensor("w", kB, problem_.w, problem_.type),
                                  convolution<fe::graph::Conv_dgrad_attributes>());
      case Kind::GradWeight: {
        const auto x = tensor("x", kA, problem_.x, problem_.type);
        return graph().conv_wgrad(tensor("dy", kB, problem_.y, problem_.type), x,
                                  convolution<fe::graph::Conv_wgrad_attributes>());
      }
    }
    return nullptr;
  }

  // Asks the heuristics for engines, and bars those that break the problem's numerical rules. False: there are none.
  bool propose() {
    graph()
        .set_io_data_type(frontend_type(problem_.type))
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    operation()
        ->set_output(true)
        .set_uid(kResult)
        .set_dim(problem_.output_shape())
        .set_stride(channels_last_strides(problem_.output_shape()))
        .set_data_type(frontend_type(problem_.output_type));
    if (graph().validate().is_bad() || graph().build_operation_graph(context_.cudnn).is_bad() ||
        graph().create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK}).is_bad()) {
      return false;
    }
    std::vector<fe::NumericalNote_t> barred = {fe::NumericalNote_t::REDUCED_PRECISION_REDUCTION,
                                               fe::NumericalNote_t::WINOGRAD_TILE_13x13};
    if (problem_.type == DataType::Float32) {
      barred.push_back(fe::NumericalNote_t::DOWN_CONVERT_INPUTS);
      barred.push_back(fe::NumericalNote_t::WINOGRAD_TILE_6x6);
      if (!problem_.tf32) barred.push_back(fe::NumericalNote_t::TENSOR_CORE);
    }
    if (problem_.deterministic) barred.push_back(fe::NumericalNote_t::NONDETERMINISTIC);
    graph().deselect_numeric_notes(barred);
    graph().deselect_workspace_greater_than(problem_.workspace_limit);
    return graph().get_execution_plan_count() > 0;
  }

  bool build(int64_t index) {
    return graph().build_plan_at_index(index).is_good() && workspace_at(index) <= problem_.workspace_limit;
  }
  int64_t workspace_at(int64_t index) { return std::max<int64_t>(0, graph().get_workspace_size_plan_at_index(index)); }
  std::string engine_at(int64_t index) {
    std::string name;
    return graph().get_plan_name_at_index(index, name).is_good() ? name : std::string();
  }

  Choice choose() {
    std::vector<int64_t> built;
    const int64_t proposals = graph().get_execution_plan_count(), most = problem_.deterministic ? 1 : kCandidates;
    for (int64_t index = 0; index < proposals && int64_t(built.size()) < most; ++index) {
      if (build(index)) built.push_back(index);
    }
    if (built.empty()) return {};
    if (problem_.deterministic) return {built[0], engine_at(built[0]), 0};
    return fastest(built);
  }

  // Operands of one call, in the kind's order.
  struct Operands {
    DeviceBuffer a, b, bias, result, scratch;
  };

  Operands operands(int64_t workspace) {
    const bool grad_input = problem_.kind == Kind::GradInput, grad_weight = problem_.kind == Kind::GradWeight;
    return {noise(element_count(grad_input ? problem_.y : problem_.x), problem_.type),
            noise(element_count(grad_weight ? problem_.y : problem_.w), problem_.type),
            noise(problem_.y[1], DataType::Float32),
            DeviceBuffer(element_count(problem_.output_shape()) * int64_t(size_of(problem_.output_type))),
            DeviceBuffer(workspace)};
  }

  Choice fastest(const std::vector<int64_t>& candidates) {
    int64_t workspace = 0;
    for (const int64_t index : candidates) workspace = std::max(workspace, workspace_at(index));
    std::vector<Operands> copies;
    copies.push_back(operands(workspace));
    try {
      while (int(copies.size()) < problem_.concurrent) copies.push_back(operands(workspace));
    } catch (const RunError&) {
      cudaGetLastError();  // the device is full: fewer at a time
    }
    Choice best;
    for (const int64_t index : candidates) {
      plan_->state_->index = index;
      plan_->engine_ = engine_at(index);
      const double microseconds = time(copies);
      if (microseconds > 0 && (best.index < 0 || microseconds < best.microseconds)) {
        best = {index, plan_->engine_, microseconds};
      }
    }
    return best;
  }

  void call(const Operands& with, cudaStream_t stream) {
    plan_->run(context_.cudnn, stream, with.a.data(), with.b.data(), with.bias.data(), with.result.data(),
               with.scratch.data());
  }

  // The least time of a call of all copies side by side, dependent calls apart by as much as in a recorded step; 0 where
  // the engine refuses to run or to be recorded. Calls one by one would measure the host instead: a small convolution is
  // shorter than its launch.
  double time(const std::vector<Operands>& copies) {
    const Event start, stop;
    const cudaStream_t stream = context_.stream;
    while (beside_.size() + 1 < copies.size()) beside_.push_back(std::make_unique<Stream>());
    RecordedGraph recorded;
    int calls = kCallsPerTiming;
    try {
      call(copies[0], stream);  // loads what the engine needs
      CUDA_CHECK(cudaEventRecord(start.get(), stream));
      call(copies[0], stream);
      CUDA_CHECK(cudaEventRecord(stop.get(), stream));
      if (microseconds_between(start, stop) > kLongCall) calls = 1;
      CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
      CUDA_CHECK(cudaEventRecord(start.get(), stream));
      for (size_t copy = 0; copy < copies.size(); ++copy) {
        const cudaStream_t own = copy == 0 ? stream : beside_[copy - 1]->get();
        if (copy > 0) CUDA_CHECK(cudaStreamWaitEvent(own, start.get(), 0));
        for (int k = 0; k < calls; ++k) call(copies[copy], own);
        if (copy == 0) continue;
        CUDA_CHECK(cudaEventRecord(stop.get(), own));
        CUDA_CHECK(cudaStreamWaitEvent(stream, stop.get(), 0));
      }
    } catch (const RunError&) {
      recorded.end(stream);
      cudaGetLastError();
      CUDA_CHECK(cudaStreamSynchronize(stream));  // a fault of the device, rather than a refusal, ends here
      return 0;
    }
    if (!recorded.end(stream)) {
      cudaGetLastError();
      return 0;
    }
    CUDA_CHECK(cudaGraphLaunch(recorded.executable(), stream));
    double least = 0;
    for (int i = 0; i < kRepetitions; ++i) {
      CUDA_CHECK(cudaEventRecord(start.get(), stream));
      CUDA_CHECK(cudaGraphLaunch(recorded.executable(), stream));
      CUDA_CHECK(cudaEventRecord(stop.get(), stream));
      const double microseconds = microseconds_between(start, stop) / calls;
      if (i == 0 || microseconds < least) least = microseconds;
    }
    return least;
  }

  static double microseconds_between(const Event& start, const Event& stop) {
    CUDA_CHECK(cudaEventSynchronize(stop.get()));
    float milliseconds = 0;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, start.get(), stop.get()));
    return double(milliseconds) * 1000;
  }

  // Random numbers in [-1, 1): on zeros matrix units draw less power and run faster than they will.
  DeviceBuffer noise(int64_t elements, DataType type) {
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
    for (int64_t first = 0; first < elements; first += kBlock) {
      const int64_t bytes = std::min(elements - first, kBlock) * int64_t(size_of(type));
      CUDA_CHECK(cudaMemcpyAsync(static_cast<char*>(buffer.data()) + first * int64_t(size_of(type)), from,
                                 size_t(bytes), cudaMemcpyHostToDevice, context_.stream));
    }
    CUDA_CHECK(cudaStreamSynchronize(context_.stream));  // `values` goes away
    return buffer;
  }

  CudaContext& context_;
  const ConvolutionProblem& problem_;
  std::shared_ptr<ConvolutionPlan> plan_;
  std::vector<std::unique_ptr<Stream>> beside_;  // of the copies but the first
};

std::shared_ptr<const ConvolutionPlan> find_convolution_plan(CudaContext& context, const ConvolutionProblem& problem) {
  if (!context.cache) context.cache = std::make_shared<CudaKernelCache>(context.device);
  CudaKernelCache& cache = *context.cache;
  const std::scoped_lock lock(cache.mutex);
  const auto [entry, added] = cache.convolution_plans.try_emplace(problem.key());
  if (added) {
    try {
      entry->second = ConvolutionPlanner(*cache.context, problem).make();
    } catch (...) {
      cache.convolution_plans.erase(entry);
      throw;
    }
  }
  return entry->second;
}

}  // namespace arbalest
