// SPDX-License-Identifier: Apache-2.0
#include "ops/conv/grouped/conv_group_tiles.h"

#include "ops/conv/grouped/conv_group_forms.cuh"
#include "ops/cuda/partial_sums.cuh"

namespace arbalest {

using namespace cuda;

namespace {

using Kind = ConvolutionProblem::Kind;
using T = __nv_bfloat16;

template <typename F, GroupWay Way>
void run_convolution(const ConvolutionProblem& problem, const ConvolutionCall& call) {
  using Set = typename F::Set;
  const GroupTiling t = tiling_of<F>(problem, call.multiprocessors);
  const auto kernel = group_convolution_kernel<F::kWidth, F::kGroups, F::kM, Way>;
  const int shared = shared_of_convolution<Set>(t);
  allow_shared(kernel, shared);
  launch_dependent(kernel, group_grid<F>(t, Way), F::kThreadsOf, size_t(shared), call.stream, t,
                   static_cast<const T*>(call.a), static_cast<const T*>(call.b), static_cast<T*>(call.result));
  check_launch("convolution of narrow groups");
}

template <typename F>
void run_filter_gradient(const ConvolutionProblem& problem, const ConvolutionCall& call) {
  const GroupTiling t = tiling_of<F>(problem, call.multiprocessors);
  const auto kernel = group_filter_gradient_kernel<F::kWidth, F::kGroups, F::kSplits>;
  const int shared = F::Gradient::shared_bytes(t);
  auto* const partials = static_cast<float*>(call.workspace);
  allow_shared(kernel, shared);
  launch_dependent(kernel, group_grid<F>(t, GroupWay::Forward), kThreads, size_t(shared), call.stream, t,
                   static_cast<const T*>(call.a), static_cast<const T*>(call.b), partials);
  check_launch("filter gradient of a convolution of narrow groups");
  sum_partials(call.stream, t.blocks, int(element_count(problem.w)), partials, static_cast<float*>(call.result));
}

void run_group_tiles(const ConvolutionProblem& problem, const ConvolutionCall& call) {
  with_group_form(problem, [&](auto form) {
    using F = decltype(form);
    switch (problem.kind) {
      case Kind::GradWeight: return run_filter_gradient<F>(problem, call);
      case Kind::GradInput:
        return is_strided_gradient(problem) ? run_convolution<F, GroupWay::StridedGradient>(problem, call)
                                            : run_convolution<F, GroupWay::Gradient>(problem, call);
      default: return run_convolution<F, GroupWay::Forward>(problem, call);
    }
  });
}

bool takes_group_tiles(const DeviceModel& device, const ConvolutionProblem& p) {
  const DataType made = p.kind == Kind::GradWeight ? DataType::Float32 : DataType::Bfloat16;
  if (!device.has_large_blocks() || p.kind == Kind::ForwardBias || p.relu || p.type != DataType::Bfloat16 ||
      p.output_type != made || p.x.size() != 4 || p.w[2] != 3 || p.w[3] != 3) {
    return false;
  }
  const int64_t channels = p.x[1], width = p.w[1];
  constexpr int64_t kMostStep = 64;  // of a stride or dilation
  const auto far = [](int64_t step) { return step > kMostStep; };
  if (std::any_of(p.stride.begin(), p.stride.end(), far) || std::any_of(p.dilation.begin(), p.dilation.end(), far) ||
      element_count(p.x) == 0 || element_count(p.y) == 0) {
    return false;
  }
  const bool narrow = width == 4 || (width % 8 == 0 && width <= 64);
  if (!narrow || p.w[0] != channels || width == channels || channels % std::max<int64_t>(width, 8) != 0) return false;
  const bool transposed = p.kind == Kind::GradInput;
  if (is_strided_gradient(p) && (!all_are(p.stride, 2) || !all_are(p.dilation, 1))) return false;
  const Shape& made_image = transposed ? p.x : p.y;
  if (made_image[3] > kGroupTilePixels || made_image[0] * made_image[2] * made_image[3] > INT32_MAX) return false;
  return with_group_form(p, [&](auto form) {
    using F = decltype(form);
    const GroupTiling t = tiling_of<F>(p, 1);  // blocks of several tiles take the most
    return (p.kind == Kind::GradWeight ? F::Gradient::shared_bytes(t) : shared_of_convolution<typename F::Set>(t)) <=
           kMostGroupShared;
  });
}

int64_t group_tiles_workspace(const ConvolutionProblem& problem, int multiprocessors) {
  if (problem.kind != Kind::GradWeight) return 0;
  return with_group_form(problem, [&](auto form) {
    const GroupTiling t = tiling_of<decltype(form)>(problem, multiprocessors);
    return t.blocks * element_count(problem.w) * int64_t(sizeof(float));
  });
}

}  // namespace

constexpr ConvolutionEngine kGroupTilesEngine = {
    .name = "group tiles",
    .revision = "group tiles 6",
    .accepts = takes_group_tiles,
    .is_faster = [](const DeviceModel&,
                    const ConvolutionProblem& p) { return p.w[1] <= 32 && !is_strided_gradient(p); },
    .workspace = group_tiles_workspace,
    .run = run_group_tiles};

}  // namespace arbalest
