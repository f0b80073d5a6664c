// Conv and its gradients on CUDA: cuDNN's plans, with kernels of ours for depthwise ones and for what no plan does.

#include "ops/nn/conv_direct.cuh"

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

// Images (N,…,C) of `from` pixels into images of `to` pixels, which begin at pixel `first` of theirs; zeros outside.
struct Placement {
  int from[3], to[3], first[3];
};

template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    place_images_kernel(Placement p, int64_t count, int channels, const T* from, T* to) {
  for (int64_t i = thread_index(); i < count / W; i += thread_count()) {
    const PixelPlace place(i, p.to, channels / W);
    int64_t pixel = place.image;
    bool inside = true;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      const int at = place.at[axis] + p.first[axis];
      inside = inside && at >= 0 && at < p.from[axis];
      pixel = pixel * p.from[axis] + at;
    }
    Pack<T, W> pack = {};
    if (inside) pack = load<W>(from + pixel * channels + place.pack * W);
    store(to + i * W, pack);
  }
}

// `from` and `to`: shapes (N,C,…) with one element type; `first`: where `to` begins in `from`, in pixels.
template <typename T>
void place_images(cudaStream_t stream, int multiprocessors, const Shape& from_shape, const Shape& to_shape,
                  const std::vector<int64_t>& first, const void* from, void* to) {
  Placement placement = {};
  const Pixels from_pixels = pixels_of(from_shape), to_pixels = pixels_of(to_shape);
  for (size_t axis = 0; axis < 3; ++axis) {
    placement.from[axis] = int(from_pixels[axis]);
    placement.to[axis] = int(to_pixels[axis]);
    if (axis + first.size() >= 3) placement.first[axis] = int(first[axis + first.size() - 3]);
  }
  constexpr int W = 16 / sizeof(T);
  const int64_t count = element_count(to_shape);
  const int channels = int(to_shape[1]);
  const T* source = static_cast<const T*>(from);
  T* target = static_cast<T*>(to);
  if (channels % W == 0) {
    place_images_kernel<W>
        <<<blocks_for(count / W, multiprocessors), kThreads, 0, stream>>>(placement, count, channels, source, target);
  } else {
    place_images_kernel<1>
        <<<blocks_for(count, multiprocessors), kThreads, 0, stream>>>(placement, count, channels, source, target);
  }
  check_launch("conv padding");
}

int64_t aligned_bytes(const Shape& shape, DataType type) {
  return (element_count(shape) * int64_t(size_of(type)) + 255) / 256 * 256;
}

// What a pass of its own takes in µs: the launch, and its bytes at about the memory's rate.
double pass_microseconds(int64_t bytes) {
  return 2 + double(bytes) / 3.5e6;
}

class ConvolutionKernel final : public Kernel {
 public:
  ConvolutionKernel(const KernelRequest& request, ConvolutionProblem problem)
      : problem_(std::move(problem)), context_(cuda_context(request)) {
    if (empty()) return;
    depthwise_ = is_depthwise(problem_);
    if (depthwise_) {
      workspace_bytes_ = depthwise_workspace(problem_, context_.multiprocessors);
      return;
    }
    // Some engine for float filter gradients takes images padded more on one side than on the other and computes
    // something else: seen where slow timing had chosen it.
    const bool uneven = problem_.pad_begin != problem_.pad_end;
    if (!uneven || problem_.kind != Kind::GradWeight) make_plan();
    if (plan_ == nullptr && uneven) plan_padded();
    if (plan_ != nullptr) workspace_bytes_ = padded_bytes_ + lowered_bytes_ + plan_->workspace_bytes();
  }

  int64_t workspace_bytes() const override { return workspace_bytes_; }

  void run(const KernelContext& c) const override {
    if (empty()) return;
    const cudaStream_t stream = stream_of(c);
    const int64_t count = element_count(problem_.output_shape());
    const auto* bias = problem_.kind == Kind::ForwardBias ? input<float>(c, 2) : nullptr;
    const void *a = c.inputs[0], *b = c.inputs[1];
    if (depthwise_) {
      run_depthwise_convolution(problem_, context_.multiprocessors, stream, a, b, bias, c.outputs[0], c.workspace);
      return;
    }
    if (plan_ == nullptr) {
      run_direct_convolution(problem_, context_.multiprocessors, stream, a, b, bias, c.outputs[0]);
      return;
    }
    require_alignment("convolution", {a, b, c.outputs[0]});
    auto* workspace = static_cast<char*>(c.workspace);
    void* const padded = workspace;
    workspace += padded_bytes_;
    const bool pads_result = padded_bytes_ > 0 && problem_.kind == Kind::GradInput;
    void* result = lowered_bytes_ > 0 ? workspace : pads_result ? padded : c.outputs[0];
    if (padded_bytes_ > 0 && !pads_result) {
      std::vector<int64_t> before;
      for (const int64_t pad : unpadded_.pad_begin) before.push_back(-pad);
      place(stream, unpadded_.x, problem_.x, before, a, padded);
      a = padded;
    }
    plan_->run(context_.cudnn, stream, a, b, bias, result, workspace + lowered_bytes_);
    if (pads_result) place(stream, problem_.x, unpadded_.x, unpadded_.pad_begin, padded, c.outputs[0]);
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
  void make_plan() {
    switch (problem_.kind) {
      case Kind::ForwardBias: plan_with_bias(); break;
      case Kind::GradWeight: plan_gradient(); break;
      default: plan_ = find_convolution_plan(context_, problem_);
    }
  }

  // cuDNN has few engines for images padded more on one side than on the other: the padded image is in the workspace.
  void plan_padded() {
    unpadded_ = problem_;
    for (size_t axis = 0; axis < problem_.pad_begin.size(); ++axis) {
      problem_.x[2 + axis] += problem_.pad_begin[axis] + problem_.pad_end[axis];
      problem_.pad_begin[axis] = problem_.pad_end[axis] = 0;
    }
    padded_bytes_ = aligned_bytes(problem_.x, problem_.type);
    problem_.workspace_limit = std::max<int64_t>(0, problem_.workspace_limit - padded_bytes_);
    make_plan();
    if (plan_ != nullptr) return;
    problem_ = unpadded_;
    padded_bytes_ = 0;
  }

  void place(cudaStream_t stream, const Shape& from_shape, const Shape& to_shape, const std::vector<int64_t>& first,
             const void* from, void* to) const {
    if (problem_.type == DataType::Float32) {
      place_images<float>(stream, context_.multiprocessors, from_shape, to_shape, first, from, to);
    } else {
      place_images<__nv_bfloat16>(stream, context_.multiprocessors, from_shape, to_shape, first, from, to);
    }
  }

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
    const int64_t bytes = aligned_bytes(problem_.w, problem_.type);
    lowered.workspace_limit = std::max<int64_t>(0, problem_.workspace_limit - bytes);
    const auto apart = find_convolution_plan(context_, lowered);
    if (apart == nullptr) return;
    if (plan_ == nullptr || apart->microseconds() + pass_microseconds(3 * bytes) < plan_->microseconds()) {
      plan_ = apart;
      lowered_bytes_ = bytes;
    }
  }

  ConvolutionProblem problem_, unpadded_;  // what is planned; what was asked for, where padding is explicit
  CudaContext& context_;
  std::shared_ptr<const ConvolutionPlan> plan_;  // null: plain loops
  int64_t workspace_bytes_ = 0;
  // In the workspace, ahead of the plan's own: the padded image of X or dX (0: there is none), and the result before it
  // is widened (0: the result goes straight out).
  int64_t padded_bytes_ = 0, lowered_bytes_ = 0;
  bool depthwise_ = false;
  bool bias_apart_ = false;
};

// Two spatial axes at least, as cuDNN wants them.
Shape lifted(const Shape& shape) {
  return shape.size() == 3 ? Shape{shape[0], shape[1], 1, shape[2]} : shape;
}

std::unique_ptr<Kernel> convolution(const KernelRequest& request, Kind kind, const Shape& x, const Shape& w,
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
  return std::make_unique<ConvolutionKernel>(request, std::move(problem));
}

}  // namespace

std::unique_ptr<Kernel> conv_grad_input_cuda(const KernelRequest& r) {
  return convolution(r, Kind::GradInput, r.outputs[0].shape, r.inputs[1].shape, r.inputs[0].shape);
}

void register_nn_conv_cuda(OpRegistry& registry) {
  registry.find("Conv")->cuda = [](const KernelRequest& r) {
    return convolution(r, r.has_input(2) ? Kind::ForwardBias : Kind::Forward, r.inputs[0].shape, r.inputs[1].shape,
                       r.outputs[0].shape);
  };
  registry.find("arbalest.ConvGradInput")->cuda = conv_grad_input_cuda;
  registry.find("arbalest.ConvGradWeight")->cuda = [](const KernelRequest& r) {
    return convolution(r, Kind::GradWeight, r.inputs[0].shape, r.outputs[0].shape, r.inputs[1].shape);
  };
}

}  // namespace arbalest
