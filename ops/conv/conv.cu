// SPDX-License-Identifier: Apache-2.0

// Conv and its gradients on CUDA: cuDNN's plans, with kernels of ours for depthwise ones and for what no plan does.

#include <string>
#include <utility>

#include "ops/conv/conv_colours.h"
#include "ops/conv/conv_fold.h"
#include "ops/conv/conv_kernel.h"
#include "ops/conv/conv_small.h"
#include "ops/conv/conv_solution.h"
#include "ops/conv/conv_thin.h"
#include "ops/conv/grouped/conv_direct.cuh"
#include "ops/conv/grouped/conv_groups.h"
#include "ops/conv/hopper/conv_folded.h"
#include "ops/conv/hopper/conv_halo.h"
#include "ops/cuda/convolution_timer.h"

namespace arbalest {

using namespace cuda;

namespace {

using Kind = ConvolutionProblem::Kind;

constexpr int64_t kThinChannels = 16;  // that the kernels of conv_thin.h begin with

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

// Images (N,…,C) of `from` pixels into images of `to` pixels, which begin at pixel `first` of theirs; zeros outside.
struct PaddingPlacement {
  int from[3], to[3], first[3];
};

template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    place_images_kernel(PaddingPlacement p, int64_t count, int channels, const T* from, T* to) {
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
  PaddingPlacement placement = {};
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
    // something else. This was seen when slow timing had chosen it.
    const bool uneven = problem_.pad_begin != problem_.pad_end;
    if (!uneven || problem_.kind != Kind::GradWeight) {
      solution_ = solve(context_, problem_);
      try_folded();
      if (folding_.wide == 0) try_joined();
    }
    if (!solution_.found() && uneven) solve_padded();
    if (!solution_.found()) return;
    workspace_bytes_ = padded_bytes_ + solution_.workspace_bytes(problem_, context_.multiprocessors);
    if (folding_.wide > 0) workspace_bytes_ += folded_x_bytes() + changed_w_bytes();
    if (joined_.by > 1) workspace_bytes_ += changed_w_bytes();
  }

  int64_t workspace_bytes() const override { return workspace_bytes_; }

  std::string engine() const override {
    if (depthwise_) return "depthwise";
    if (!solution_.found()) return "plain loops";
    if (joined_.by > 1) return solution_.engine() + ", " + std::to_string(joined_.by) + " groups as one";
    if (folding_.wide == 0) return solution_.engine();
    const std::string folded = folding_.fold > 1 ? ", folded by " + std::to_string(folding_.fold) : "";
    return solution_.engine() + folded + ", " + std::to_string(folding_.wide) + " channels";
  }

  void run(const KernelContext& c) const override {
    if (empty()) return;
    const cudaStream_t stream = stream_of(c);
    const auto* bias = problem_.kind == Kind::ForwardBias ? input<float>(c, 2) : nullptr;
    const void *a = c.inputs[0], *b = c.inputs[1];
    if (depthwise_) {
      run_depthwise_convolution(problem_, context_.multiprocessors, stream, a, b, bias, c.outputs[0], c.workspace);
      if (problem_.relu) add_bias(c, stream, nullptr);
      return;
    }
    if (!solution_.found()) {
      run_direct_convolution(problem_, context_.multiprocessors, stream, a, b, bias, c.outputs[0]);
      if (problem_.relu) add_bias(c, stream, nullptr);
      return;
    }
    require_alignment("convolution", {a, b, c.outputs[0]});
    auto* workspace = static_cast<char*>(c.workspace);
    const auto take = [&](int64_t bytes) { return std::exchange(workspace, workspace + bytes); };
    void* result = c.outputs[0];
    if (padded_bytes_ > 0) {
      char* const padded = take(padded_bytes_);
      if (problem_.kind == Kind::GradInput) {
        result = padded;
      } else {
        std::vector<int64_t> before;
        for (const int64_t pad : unpadded_.pad_begin) before.push_back(-pad);
        place(stream, unpadded_.x, problem_.x, before, a, padded);
        a = padded;
      }
    }
    if (folding_.wide > 0) {
      char *const x = take(folded_x_bytes()), *const w = take(changed_w_bytes());
      fold_image(stream, context_.multiprocessors, folding_, problem_.type, a, x);
      a = x;
      if (problem_.kind == Kind::GradWeight) {
        result = w;
      } else {
        fold_filter(stream, context_.multiprocessors, folding_, problem_.type, b, w);
        b = w;
      }
    }
    if (joined_.by > 1) {
      char* const w = take(changed_w_bytes());
      if (problem_.kind == Kind::GradWeight) {
        result = w;
      } else {
        join_filter(stream, context_.multiprocessors, joined_, problem_.type, b, w);
        b = w;
      }
    }
    if (solution_.lowered_bytes > 0) result = take(solution_.lowered_bytes);
    switch (solution_.own) {
      case Solution::Own::Thin:
        run_thin_convolution(problem_, context_.multiprocessors, stream, a, b, result, workspace);
        break;
      case Solution::Own::Small:
        run_small_convolution(problem_, context_.multiprocessors, stream, a, b, solution_.bias_apart ? nullptr : bias,
                              result, workspace);
        break;
      case Solution::Own::Colours:
        run_colours_convolution(problem_, context_.multiprocessors, stream, a, b, solution_.bias_apart ? nullptr : bias,
                                result);
        break;
      case Solution::Own::FoldedRows:
        run_folded_gradient(problem_, context_.multiprocessors, stream, a, b, result, workspace);
        break;
      case Solution::Own::Halo: run_halo_convolution(problem_, stream, a, b, bias, result); break;
      case Solution::Own::None:
        solution_.plan->run(context_, stream, a, b, solution_.bias_apart ? nullptr : bias, result, workspace);
    }
    finish(c, stream, result);
    if (solution_.bias_apart) add_bias(c, stream, bias);
  }

 private:
  // Brings the plan's result to the output.
  void finish(const KernelContext& c, cudaStream_t stream, const void* result) const {
    if (padded_bytes_ > 0 && problem_.kind == Kind::GradInput) {
      place(stream, problem_.x, unpadded_.x, unpadded_.pad_begin, result, c.outputs[0]);
    } else if (folding_.wide > 0 && problem_.kind == Kind::GradWeight) {
      const DataType made = solution_.lowered_bytes > 0 ? problem_.type : problem_.output_type;
      unfold_filter(stream, context_.multiprocessors, folding_, made, result, problem_.output_type, c.outputs[0]);
    } else if (joined_.by > 1 && problem_.kind == Kind::GradWeight) {
      const DataType made = solution_.lowered_bytes > 0 ? problem_.type : problem_.output_type;
      part_filter(stream, context_.multiprocessors, joined_, made, result, problem_.output_type, c.outputs[0]);
    } else if (solution_.lowered_bytes > 0) {
      launch_elementwise("conv gradient cast", stream, context_.multiprocessors, element_count(problem_.w), Widened{},
                         output<float>(c, 0), static_cast<const __nv_bfloat16*>(result));
    }
  }

  // Adds the bias, and applies Relu if the problem has it.
  void add_bias(const KernelContext& c, cudaStream_t stream, const float* bias) const {
    const int channels = int(problem_.y[1]);
    const int64_t count = element_count(problem_.y);
    const auto add_to = [&](auto* y) {
      if (problem_.relu) {
        arbalest::add_bias<true>(stream, context_.multiprocessors, count, channels, bias, y);
      } else {
        arbalest::add_bias<false>(stream, context_.multiprocessors, count, channels, bias, y);
      }
    };
    if (problem_.output_type == DataType::Float32) {
      add_to(output<float>(c, 0));
    } else {
      add_to(output<__nv_bfloat16>(c, 0));
    }
  }

  // Engines for images of three channels barely use the matrix units.
  void try_folded() {
    const int64_t channels = problem_.x[1];
    const bool needless = channels >= 8 || solution_.own == Solution::Own::Small;
    if (needless || problem_.deterministic || problem_.kind == Kind::GradInput) return;
    const ConvolutionProblem asked = problem_;
    const int64_t bytes = element_count(asked.x) * int64_t(size_of(asked.type));
    const auto attempt = [&](int by, int64_t wide) {
      ConvolutionProblem problem = asked;
      Folding folding;
      if (!fold(problem, by, wide, folding)) return;
      Solution solution = solve(context_, problem);
      solution.microseconds += pass_microseconds(bytes + aligned_bytes(problem.x, problem.type)) + pass_microseconds(0);
      if (!solution.better_than(solution_)) return;
      solution_ = solution;
      problem_ = problem;
      folding_ = folding;
    };
    if (channels < 4) attempt(1, 4);
    attempt(1, 8);
    attempt(1, kThinChannels);
    constexpr int64_t kMost = 1024;  // channels: patches of 16 × 16 have 768
    const int64_t stride = asked.stride[0], folded = (stride * stride * channels + 7) / 8 * 8;
    if (stride > 1 && folded <= kMost) attempt(int(stride), folded);
  }

  // A choice that is to be the same each time cannot rest on timings: groups stay apart then.
  void try_joined() {
    if (problem_.deterministic) return;
    const ConvolutionProblem asked = problem_;
    for (const int by : ways_to_join(asked)) {
      ConvolutionProblem problem = asked;
      const JoinedGroups joined = join_groups(problem, by);
      const int64_t bytes = aligned_bytes(problem.w, DataType::Float32);
      problem.workspace_limit = std::max<int64_t>(0, asked.workspace_limit - bytes);
      Solution solution = solve(context_, problem);
      solution.microseconds += pass_microseconds(bytes);
      if (!solution.better_than(solution_)) continue;
      solution_ = solution;
      problem_ = problem;
      joined_ = joined;
    }
  }

  // cuDNN has few engines for images padded more on one side than on the other: the padded image is in the workspace.
  void solve_padded() {
    unpadded_ = problem_;
    for (size_t axis = 0; axis < problem_.pad_begin.size(); ++axis) {
      problem_.x[2 + axis] += problem_.pad_begin[axis] + problem_.pad_end[axis];
      problem_.pad_begin[axis] = problem_.pad_end[axis] = 0;
    }
    padded_bytes_ = aligned_bytes(problem_.x, problem_.type);
    problem_.workspace_limit = std::max<int64_t>(0, problem_.workspace_limit - padded_bytes_);
    solution_ = solve(context_, problem_);
    if (solution_.found()) return;
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

  int64_t folded_x_bytes() const { return aligned_bytes(problem_.x, problem_.type); }
  int64_t changed_w_bytes() const {
    return aligned_bytes(problem_.w, problem_.kind == Kind::GradWeight ? problem_.output_type : problem_.type);
  }

  bool empty() const { return element_count(problem_.x) == 0 || element_count(problem_.y) == 0; }

  ConvolutionProblem problem_, unpadded_;  // as planned; as requested, if padding is explicit
  CudaContext& context_;
  Solution solution_;  // if none is found: plain loops
  int64_t workspace_bytes_ = 0;
  int64_t padded_bytes_ = 0;  // in the workspace, of the padded image of X or dX; 0: there is none
  Folding folding_;           // if `problem_` is folded
  JoinedGroups joined_;       // if groups of `problem_` are joined
  bool depthwise_ = false;
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
  return convolution_problem(r, r.has_input(2) ? Kind::ForwardBias : Kind::Forward, r.inputs[0].shape,
                             r.inputs[1].shape, r.outputs[0].shape);
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
  return convolution(r, Kind::GradInput, r.outputs[0].shape, r.inputs[1].shape, r.inputs[0].shape);
}

void register_conv_conv_cuda(OpRegistry& registry) {
  registry.find("Conv")->cuda = conv_cuda;
  registry.find("arbalest.ConvRelu")->cuda = conv_relu_cuda;
  registry.find("arbalest.ConvGradInput")->cuda = conv_grad_input_cuda;
  registry.find("arbalest.ConvGradWeight")->cuda = [](const KernelRequest& r) {
    return convolution(r, Kind::GradWeight, r.inputs[0].shape, r.outputs[0].shape, r.inputs[1].shape);
  };
}

}  // namespace arbalest
