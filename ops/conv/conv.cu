// SPDX-License-Identifier: Apache-2.0

// Conv and its gradients on CUDA: cuDNN's plans, with kernels of ours for depthwise ones and for what no plan does.

#include <string>
#include <utility>

#include "ops/conv/conv_detour.h"
#include "ops/conv/conv_kernel.h"
#include "ops/conv/conv_solution.h"
#include "ops/cuda/convolution_timer.h"
#include "ops/cuda/cuda_math.cuh"
#include "ops/names.h"
#include "ops/nn/window.cuh"

namespace arbalest {

using namespace cuda;

namespace {

using Kind = ConvolutionProblem::Kind;

// y: (rows, C), bias: (C) or nothing; in place. NaN stays NaN.
template <int W, bool Relu, typename T>
__global__ void __launch_bounds__(kThreads) add_bias_kernel(int64_t count, int packs, const float* bias, T* y) {
  wait_for_dependencies();
  for (int64_t i = thread_index(); i < count / W; i += thread_count()) {
    const int channel = (i <= INT32_MAX ? int(uint32_t(i) % uint32_t(packs)) : int(i % packs)) * W;
    Pack<T, W> pack = load<W>(y + i * W);
#pragma unroll
    for (int w = 0; w < W; ++w) {
      float sum = widen(pack.element[w]);
      if (bias != nullptr) sum += bias[channel + w];
      pack.element[w] = narrow<T>(Relu && sum < 0 ? 0.0f : sum);
    }
    store(y + i * W, pack);
  }
}

template <bool Relu, typename T>
void add_bias(cudaStream_t stream, int multiprocessors, int64_t count, int channels, const float* bias, T* y) {
  constexpr int W = 16 / sizeof(T);
  if (channels % W == 0 && aligned(y)) {
    launch_dependent(add_bias_kernel<W, Relu, T>, blocks_for(count / W, multiprocessors), kThreads, 0, stream, count,
                     channels / W, bias, y);
  } else {
    launch_dependent(add_bias_kernel<1, Relu, T>, blocks_for(count, multiprocessors), kThreads, 0, stream, count,
                     channels, bias, y);
  }
  check_launch("conv bias");
}

struct Widened {
  __device__ float operator()(float x) const { return x; }
};

class ConvolutionKernel final : public Kernel {
 public:
  ConvolutionKernel(const KernelRequest& request, ConvolutionProblem problem)
      : context_(cuda_context(request)),
        multiprocessors_(multiprocessors_of(request)),
        way_{.problem = std::move(problem)} {
    using Chosen = ConvolutionEngine::Chosen;
    if (empty()) return;
    solution_.engine = first_engine(Chosen::First, context_.model, way_.problem);
    if (!solution_.found()) search();
    if (!solution_.found()) solution_.engine = first_engine(Chosen::Last, context_.model, way_.problem);
    workspace_bytes_ = way_.workspace_bytes() + solution_.workspace_bytes(way_.problem, multiprocessors_);
  }

  int64_t workspace_bytes() const override { return workspace_bytes_; }

  std::string engine() const override { return empty() ? "" : solution_.name() + way_.name; }

  void run(const KernelContext& c) const override {
    if (empty()) return;
    const ConvolutionProblem& problem = way_.problem;
    const auto* bias = problem.kind == Kind::ForwardBias ? input<float>(c, ConvInput::B) : nullptr;
    ConvolutionCall call{.stream = stream_of(c),
                         .multiprocessors = multiprocessors_,
                         .a = c.inputs[BinaryInput::A],
                         .b = c.inputs[BinaryInput::B],
                         .bias = solution_.bias_apart ? nullptr : bias,
                         .result = c.outputs[0],
                         .workspace = c.workspace};
    const ConvolutionEngine* engine = solution_.engine;
    if (engine == nullptr || engine->chosen == ConvolutionEngine::Chosen::Timed) {
      require_alignment("convolution", {call.a, call.b, call.result});
    }
    const auto take = [&](int64_t bytes) {
      void* const taken = call.workspace;
      call.workspace = static_cast<char*>(taken) + bytes;
      return taken;
    };
    const auto change = [&](const Detour::Change& make, int64_t bytes, const void*& operand) {
      if (!make) return;
      void* const changed = take(bytes);
      make(call.stream, operand, changed);
      operand = changed;
    };
    change(way_.a, way_.a_bytes(), call.a);
    change(way_.b, way_.b_bytes(), call.b);
    if (way_.back) call.result = take(way_.result_bytes());
    if (solution_.lowered_bytes > 0) call.result = take(solution_.lowered_bytes);
    solution_.run(context_, problem, call);
    if (way_.back) {
      const DataType made = solution_.lowered_bytes > 0 ? problem.type : problem.output_type;
      way_.back(call.stream, made, call.result, c.outputs[0]);
    } else if (solution_.lowered_bytes > 0) {
      launch_elementwise("conv gradient cast", call.stream, multiprocessors_, element_count(problem.w), Widened{},
                         output<float>(c, 0), static_cast<const __nv_bfloat16*>(call.result));
    }
    const bool relu_apart = problem.relu && engine != nullptr && engine->adds == ConvolutionEngine::Adds::Bias;
    if (solution_.bias_apart || relu_apart) add_bias(c, call.stream, relu_apart ? nullptr : bias);
  }

 private:
  // The fastest of all detours, or none. A choice that is to be the same each time cannot rest on timings: images are
  // not folded then, and groups stay apart.
  void search() {
    const ConvolutionProblem asked = way_.problem;
    if (is_trusted(asked)) solution_ = solve(context_, asked);
    const bool few = asked.x[1] < 8 && !(solution_.engine != nullptr && solution_.engine->takes_few);
    if (few && !asked.deterministic && asked.kind != Kind::GradInput) attempt(ways_to_fold(asked, context_.model));
    const bool folded = !way_.name.empty();
    if (!folded && !asked.deterministic) attempt(ways_of_fewer_groups(asked, context_.model));
    if (asked.pad_begin != asked.pad_end) attempt({padded_image(asked, context_.model)});
  }

  // Some engine for float filter gradients takes images padded more on one side than on the other and computes
  // something else. This was seen when slow timing had chosen it.
  static bool is_trusted(const ConvolutionProblem& problem) {
    return problem.kind != Kind::GradWeight || problem.pad_begin == problem.pad_end;
  }

  void attempt(std::vector<Detour> ways) {
    for (Detour& way : ways) {
      if (!is_trusted(way.problem)) continue;
      Solution solution = solve(context_, way.problem);
      solution.microseconds += way.microseconds;
      if (!solution.better_than(solution_)) continue;
      solution_ = solution;
      way_ = std::move(way);
    }
  }

  // Adds the bias, and applies Relu if the problem has it.
  void add_bias(const KernelContext& c, cudaStream_t stream, const float* bias) const {
    const ConvolutionProblem& problem = way_.problem;
    const int channels = int(problem.y[1]);
    const int64_t count = element_count(problem.y);
    const auto add_to = [&](auto* y) {
      if (problem.relu) {
        arbalest::add_bias<true>(stream, multiprocessors_, count, channels, bias, y);
      } else {
        arbalest::add_bias<false>(stream, multiprocessors_, count, channels, bias, y);
      }
    };
    if (problem.output_type == DataType::Float32) {
      add_to(output<float>(c, 0));
    } else {
      add_to(output<__nv_bfloat16>(c, 0));
    }
  }

  bool empty() const { return element_count(way_.problem.x) == 0 || element_count(way_.problem.y) == 0; }

  CudaContext& context_;
  int multiprocessors_;
  Detour way_;  // the problem that is solved, as requested or another one
  Solution solution_;
  int64_t workspace_bytes_ = 0;
};

// Two spatial axes at least, as cuDNN wants them.
Shape lifted(const Shape& shape) {
  return shape.size() == 3 ? Shape{shape[0], shape[1], 1, shape[2]} : shape;
}

std::unique_ptr<Kernel> convolution(const KernelRequest& request, Kind kind, const Shape& x, const Shape& w,
                                    const Shape& y) {
  return std::make_unique<ConvolutionKernel>(request, convolution_problem(request, kind, x, w, y));
}

}  // namespace

ConvolutionProblem convolution_problem(const KernelRequest& request, Kind kind, const Shape& x, const Shape& w,
                                       const Shape& y) {
  const DataType type = request.inputs[0].dtype;
  if (type != DataType::Float32 && type != DataType::Bfloat16) fail_type(request, type, "float and bfloat16");
  const Window window = window_of(request.node, {w.begin() + 2, w.end()}, x);
  ConvolutionProblem problem;
  problem.kind = kind;
  problem.type = type;
  problem.output_type = request.outputs[0].dtype;
  problem.x = lifted(x);
  problem.w = lifted(w);
  problem.y = lifted(y);
  const auto along_axes = [&](const Pixels& values) {
    return std::vector<int64_t>(values.end() - int64_t(problem.x.size() - 2), values.end());
  };
  problem.stride = along_axes(window.stride);
  problem.dilation = along_axes(window.dilation);
  problem.pad_begin = along_axes(window.pad_begin);
  problem.pad_end = along_axes(window.pad_end);
  problem.tf32 = request.math == MathMode::Tf32;
  problem.deterministic = request.deterministic;
  problem.concurrent = std::min(request.concurrent, kMostTimedTogether);
  problem.workspace_limit = request.workspace_limit;
  return problem;
}

namespace {

ConvolutionProblem forward_problem(const KernelRequest& r) {
  using In = ConvInput;
  return convolution_problem(r, r.has_input(In::B) ? Kind::ForwardBias : Kind::Forward, r.inputs[In::X].shape,
                             r.inputs[In::W].shape, r.outputs[0].shape);
}

std::unique_ptr<Kernel> conv_relu_cuda(const KernelRequest& r) {
  ConvolutionProblem problem = forward_problem(r);
  problem.relu = true;
  return std::make_unique<ConvolutionKernel>(r, std::move(problem));
}

}  // namespace

std::unique_ptr<Kernel> conv_cuda(const KernelRequest& r) {
  return std::make_unique<ConvolutionKernel>(r, forward_problem(r));
}

std::unique_ptr<Kernel> conv_grad_input_cuda(const KernelRequest& r) {
  return convolution(r, Kind::GradInput, r.outputs[0].shape, r.inputs[ConvGradInputInput::W].shape,
                     r.inputs[ConvGradInputInput::dY].shape);
}

void register_conv_conv_cuda(OpRegistry& registry) {
  registry.find("Conv")->cuda = conv_cuda;
  registry.find("arbalest.ConvRelu")->cuda = conv_relu_cuda;
  registry.find("arbalest.ConvGradInput")->cuda = conv_grad_input_cuda;
  registry.find("arbalest.ConvGradWeight")->cuda = [](const KernelRequest& r) {
    return convolution(r, Kind::GradWeight, r.inputs[ConvGradWeightInput::X].shape, r.outputs[0].shape,
                       r.inputs[ConvGradWeightInput::dY].shape);
  };
}

}  // namespace arbalest
