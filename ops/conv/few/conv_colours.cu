// SPDX-License-Identifier: Apache-2.0
#include "ops/conv/few/conv_colours.h"

#include "ops/conv/few/conv_colours_forms.cuh"
#include "ops/cuda/partial_sums.cuh"

namespace arbalest {

using namespace cuda;

namespace {

using Kind = ConvolutionProblem::Kind;
using T = __nv_bfloat16;

bool takes_colours(const DeviceModel& device, const ConvolutionProblem& p) {
  constexpr int64_t kMostColours = 4, kMostMade = 256, kMostTaps = 16, kMostExtent = 1 << 14;
  const bool gradient = p.kind == Kind::GradWeight;
  const auto within = [](int64_t least, int64_t most) {
    return [=](int64_t value) { return value >= least && value <= most; };
  };
  const auto all = [](const auto& values, auto holds) { return std::all_of(values.begin(), values.end(), holds); };
  if (device.architecture < 80 || p.kind == Kind::GradInput || p.type != DataType::Bfloat16 ||
      p.output_type != (gradient ? DataType::Float32 : DataType::Bfloat16) || p.x.size() != 4 ||
      p.x[1] > kMostColours || p.w[1] != p.x[1] || p.y[1] > kMostMade || p.y[1] % (gradient ? 4 : 2) != 0 ||
      element_count(p.x) == 0 || element_count(p.y) == 0 || p.x[0] * p.y[2] > INT32_MAX ||
      !all(Shape{p.x[2], p.x[3], p.y[2], p.y[3]}, within(1, kMostExtent)) || !all_are(p.dilation, 1) ||
      std::max(p.w[2], p.w[3]) > kMostTaps || !all(p.stride, within(1, kMostTaps)) ||
      !all(p.pad_begin, within(0, kMostTaps))) {
    return false;
  }
  const ColoursTiling t = colours_tiling(p, device.multiprocessors);
  // Results leave a block 16 bytes at a time: rows as a whole, or the channels of each pixel.
  const bool whole_rows = t.across == 1 && t.columns == t.out_width && t.out_width * t.made % 8 == 0;
  const int bytes = colours_shared_bytes(t, gradient);
  return (gradient || whole_rows || t.made % 8 == 0) && bytes > 0 && bytes <= kMostColoursShared;
}

void run_gradient(const ConvolutionProblem& problem, const ConvolutionCall& call) {
  const ColoursTiling t = colours_tiling(problem, call.multiprocessors);
  const int shared = colours_shared_bytes(t, true);
  auto* const partials = static_cast<float*>(call.workspace);
  with_colours_form(t, [&](auto form) {
    using F = decltype(form);
    const auto kernel = colours_gradient_kernel<F::kSteps, F::kJ, F::kParities>;
    allow_shared(kernel, shared);
    launch_dependent(kernel, unsigned(t.blocks), kThreads, size_t(shared), call.stream, t,
                     static_cast<const T*>(call.a), static_cast<const T*>(call.b), partials);
  });
  check_launch("filter gradient of a convolution of colours");
  sum_partials(call.stream, t.blocks, int(element_count(problem.w)), partials, static_cast<float*>(call.result));
}

void run_colours(const ConvolutionProblem& problem, const ConvolutionCall& call) {
  if (problem.kind == Kind::GradWeight) return run_gradient(problem, call);
  const ColoursTiling t = colours_tiling(problem, call.multiprocessors);
  const int shared = colours_shared_bytes(t, false);
  with_colours_form(t, [&](auto form) {
    using F = decltype(form);
    const auto kernel = colours_kernel<F::kSteps, F::kJ, F::kParities>;
    allow_shared(kernel, shared);
    launch_dependent(kernel, unsigned(t.blocks), kThreads, size_t(shared), call.stream, t,
                     static_cast<const T*>(call.a), static_cast<const T*>(call.b), call.bias, problem.relu,
                     static_cast<T*>(call.result));
  });
  check_launch("convolution of colours");
}

int64_t colours_workspace(const ConvolutionProblem& problem, int multiprocessors) {
  if (problem.kind != Kind::GradWeight) return 0;
  return colours_tiling(problem, multiprocessors).blocks * element_count(problem.w) * int64_t(sizeof(float));
}

}  // namespace

constexpr ConvolutionEngine kColoursEngine = {
    .name = "colours",
    .revision = "colours 2",
    .adds = ConvolutionEngine::Adds::BiasAndRelu,
    .takes_few = true,
    .accepts = takes_colours,
    .is_faster = [](const DeviceModel&, const ConvolutionProblem& problem) { return problem.x[1] == 3; },
    .workspace = colours_workspace,
    .run = run_colours};

}  // namespace arbalest
