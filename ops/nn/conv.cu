// Conv and its gradients on CUDA: cuDNN's plans, with kernels of ours for what no plan does.

#include "ops/cuda/cuda_math.cuh"
#include "ops/nn/conv_direct.h"
#include "ops/nn/window.h"

namespace arbalest {

using namespace cuda;

namespace {

using Kind = ConvolutionProblem::Kind;

// Of so many learners at once engines are timed; with more, the same are best, and --learners auto need not time again.
constexpr int kMostTimedTogether = 4;

// y: (rows, C), bias: (C); in place.
template <int W, typename T>
__global__ void __launch_bounds__(kThreads) add_bias_kernel(int64_t count, int packs, const float* bias, T* y) {
  for (int64_t i = thread_index(); i < count / W; i += thread_count()) {
    const int channel = (i <= INT32_MAX ? int(uint32_t(i) % uint32_t(packs)) : int(i % packs)) * W;
    Pack<T, W> pack = load<W>(y + i * W);
#pragma unroll
    for (int w = 0; w < W; ++w) pack.element[w] = narrow<T>(widen(pack.element[w]) + bias[channel + w]);
    store(y + i * W, pack);
  }
}

template <typename T>
void add_bias(cudaStream_t stream, int multiprocessors, int64_t count, int channels, const float* bias, T* y) {
  constexpr int W = 16 / sizeof(T);
  if (channels % W == 0 && aligned(y)) {
    add_bias_kernel<W><<<blocks_for(count / W, multiprocessors), kThreads, 0, stream>>>(count, channels / W, bias, y);
  } else {
    add_bias_kernel<1><<<blocks_for(count, multiprocessors), kThreads, 0, stream>>>(count, channels, bias, y);
  }
  check_launch("conv bias");
}

struct Widened {
  __device__ float operator()(float x) const { return x; }
};

// What a pass of its own takes in µs: the launch, and its bytes at about the memory's rate.
double pass_microseconds(int64_t bytes) {
  return 2 + double(bytes) / 3.5e6;
}

class ConvolutionKernel final : public Kernel {
 public:
  ConvolutionKernel(const KernelRequest& request, ConvolutionProblem problem)
      : problem_(std::move(problem)), context_(cuda_context(request)) {
    if (empty()) return;
    switch (problem_.kind) {
      case Kind::ForwardBias: plan_with_bias(); break;
      case Kind::GradWeight: plan_gradient(); break;
      default: plan_ = find_convolution_plan(context_, problem_);
    }
    if (plan_ != nullptr) workspace_bytes_ += plan_->workspace_bytes();
  }

  int64_t workspace_bytes() const override { return workspace_bytes_; }

  void run(const KernelContext& c) const override {
    if (empty()) return;
    const cudaStream_t stream = stream_of(c);
    const int64_t count = element_count(problem_.output_shape());
    const auto* bias = problem_.kind == Kind::ForwardBias ? input<float>(c, 2) : nullptr;
    if (plan_ == nullptr) {
      run_direct_convolution(problem_, context_.multiprocessors, stream, c.inputs[0], c.inputs[1], bias, c.outputs[0]);
      return;
    }
    require_alignment("convolution", {c.inputs[0], c.inputs[1], c.outputs[0]});
    auto* workspace = static_cast<char*>(c.workspace);
    void* result = lowered_bytes_ > 0 ? workspace : c.outputs[0];
    plan_->run(context_.cudnn, stream, c.inputs[0], c.inputs[1], bias, result, workspace + lowered_bytes_);
    if (lowered_bytes_ > 0) {
      launch_elementwise("conv gradient cast", stream, context_.multiprocessors, count, Widened{}, output<float>(c, 0),
                         static_cast<const __nv_bfloat16*>(result));
    }
    if (!bias_apart_) return;
    const int channels = int(problem_.y[1]);
    if (problem_.output_type == DataType::Float32) {
      add_bias(stream, context_.multiprocessors, count, channels, bias, output<float>(c, 0));
    } else {
      add_bias(stream, context_.multiprocessors, count, channels, bias, output<__nv_bfloat16>(c, 0));
    }
  }

 private:
  bool empty() const { return element_count(problem_.x) == 0 || element_count(problem_.y) == 0; }

  // The bias inside the convolution, or added afterwards: whichever is faster.
  void plan_with_bias() {
    const auto fused = find_convolution_plan(context_, problem_);
    if (fused != nullptr && problem_.deterministic) {
      plan_ = fused;
      return;
    }
    ConvolutionProblem plain = problem_;
    plain.kind = Kind::Forward;
    const auto apart = find_convolution_plan(context_, plain);
    const double pass = pass_microseconds(2 * element_count(problem_.y) * int64_t(size_of(problem_.output_type)));
    bias_apart_ = apart != nullptr && (fused == nullptr || apart->microseconds() + pass < fused->microseconds());
    plan_ = bias_apart_ ? apart : fused;
  }

  // Filter gradients are Float32. Few engines write that from lowered operands, and some of those do not split the long
  // sum over pixels: so a lowered result that passes through the workspace is the alternative.
  void plan_gradient() {
    plan_ = find_convolution_plan(context_, problem_);
    if (problem_.output_type == problem_.type || (plan_ != nullptr && problem_.deterministic)) return;
    ConvolutionProblem lowered = problem_;
    lowered.output_type = problem_.type;
    const int64_t bytes = (element_count(problem_.w) * int64_t(size_of(problem_.type)) + 255) / 256 * 256;
    lowered.workspace_limit = std::max<int64_t>(0, problem_.workspace_limit - bytes);
    const auto apart = find_convolution_plan(context_, lowered);
    if (apart == nullptr) return;
    if (plan_ == nullptr || apart->microseconds() + pass_microseconds(3 * bytes) < plan_->microseconds()) {
      plan_ = apart;
      lowered_bytes_ = workspace_bytes_ = bytes;
    }
  }

  ConvolutionProblem problem_;
  CudaContext& context_;
  std::shared_ptr<const ConvolutionPlan> plan_;  // null: plain loops
  int64_t workspace_bytes_ = 0;
  int64_t lowered_bytes_ =
      0;  // of the result in the workspace, ahead of the plan's own; 0: the result goes straight out
  bool bias_apart_ = false;
};

std::unique_ptr<Kernel> convolution(const KernelRequest& request, Kind kind, const Shape& x, const Shape& w,
                                    const Shape& y) {
  const DataType type = request.inputs[0].dtype;
  if (type != DataType::Float32 && type != DataType::Bfloat16) fail_type(request, type, "float and bfloat16");
  const Window window = window_of(request.node, {w[2], w[3]});
  ConvolutionProblem problem;
  problem.kind = kind;
  problem.type = type;
  problem.output_type = request.outputs[0].dtype;
  problem.x = x;
  problem.w = w;
  problem.y = y;
  for (size_t axis = 0; axis < 2; ++axis) {
    problem.stride[axis] = window.stride[axis];
    problem.dilation[axis] = window.dilation[axis];
    problem.pad_begin[axis] = window.pad_begin[axis];
    problem.pad_end[axis] = window.pad_end[axis];
  }
  problem.tf32 = request.math == MathMode::Tf32;
  problem.deterministic = request.deterministic;
  problem.concurrent = std::min(request.concurrent, kMostTimedTogether);
  problem.workspace_limit = request.workspace_limit;
  return std::make_unique<ConvolutionKernel>(request, std::move(problem));
}

}  // namespace

void register_nn_conv_cuda(OpRegistry& registry) {
  registry.find("Conv")->cuda = [](const KernelRequest& r) {
    return convolution(r, r.has_input(2) ? Kind::ForwardBias : Kind::Forward, r.inputs[0].shape, r.inputs[1].shape,
                       r.outputs[0].shape);
  };
  registry.find("arbalest.ConvGradInput")->cuda = [](const KernelRequest& r) {
    return convolution(r, Kind::GradInput, r.outputs[0].shape, r.inputs[1].shape, r.inputs[0].shape);
  };
  registry.find("arbalest.ConvGradWeight")->cuda = [](const KernelRequest& r) {
    return convolution(r, Kind::GradWeight, r.inputs[0].shape, r.outputs[0].shape, r.inputs[1].shape);
  };
}

}  // namespace arbalest
