// SPDX-License-Identifier: Apache-2.0
#include "ops/conv/grouped/conv_group_tiles.h"

#include <utility>

#include "ops/conv/grouped/conv_group_tiles.cuh"
#include "ops/cuda/partial_sums.cuh"

namespace arbalest {

using namespace cuda;

namespace {

using Kind = ConvolutionProblem::Kind;
using T = __nv_bfloat16;

constexpr int kMostShared = 150 << 10;  // bytes; what DeviceModel::has_large_blocks() asks for

// How the channels of a group are multiplied: Width · 8 of them, in sets of Groups. A warp of the convolution has M ·
// 16 pixels; Splits of the warps share the rows of the filter's gradient.
template <int WidthOf, int GroupsOf, int MOf, int SplitsOf>
struct Form {
  static constexpr int kWidth = WidthOf, kGroups = GroupsOf, kM = MOf, kSplits = SplitsOf;
  static constexpr int kThreadsOf = 32 * kGroups * (kGroupTilePixels / 16 / kM);
  // Blocks that a multiprocessor has registers for.
  static constexpr int kResident = 512 / kThreadsOf, kGradientResident = kWidth <= 5 ? 2 : 1;
  using Set = GroupSet<kWidth, kGroups>;
  using Gradient = GroupGradient<kWidth, kGroups, kSplits>;
};

// function(form) for channels that `accepts` takes.
template <typename Function>
auto with_group_form(const ConvolutionProblem& problem, Function function) {
  const bool sets = problem.x[1] % 32 == 0;  // whose channels lie together
  switch (problem.w[1]) {
    case 4:
    case 8: return sets ? function(Form<1, 4, 8, 1>{}) : function(Form<1, 1, 4, 2>{});
    case 16: return sets ? function(Form<2, 2, 4, 2>{}) : function(Form<2, 1, 4, 4>{});
    case 24: return function(Form<3, 1, 4, 4>{});
    case 32: return function(Form<4, 1, 4, 4>{});
    case 40: return function(Form<5, 1, 2, 8>{});
    case 48: return function(Form<6, 1, 2, 8>{});
    case 56: return function(Form<7, 1, 2, 8>{});
    default: return function(Form<8, 1, 2, 8>{});
  }
}

// Tiles of a block of which the device runs `places` at once: few waves, and none with few blocks. A block first reads
// the filter, or last adds to partial sums, which counts as a tile.
int tiles_of_block(int tiles, int sets, int places) {
  constexpr int kMost = 16;
  int best = 1, least = INT32_MAX;
  for (int each = 1; each <= std::min(tiles, kMost); ++each) {
    const int blocks = (tiles + each - 1) / each * sets, time = (blocks + places - 1) / places * (each + 1);
    if (time < least) best = each, least = time;
  }
  return best;
}

bool is_strided_gradient(const ConvolutionProblem& p) {
  return p.kind == Kind::GradInput && !all_are(p.stride, 1);
}

// For the gradient of images windows are of dY, and tiles of dX, or of its pixels with the same parities.
template <typename F>
GroupTiling tiling_of(const ConvolutionProblem& p, int multiprocessors) {
  using Set = typename F::Set;
  // Pixels of a tile's window, if the tile has more than a row.
  constexpr int kMostWindow = std::min(
      {640, (kMostShared - Set::kFilterBytes) / (2 * Set::kPitch), kMostShared / (2 * Set::kPitch) - kGroupTilePixels});
  const bool transposed = p.kind == Kind::GradInput, gradient = p.kind == Kind::GradWeight;
  const Shape &from = transposed ? p.y : p.x, &to = transposed ? p.x : p.y;
  GroupTiling t;
  t.images = int(from[0]);
  t.channels = int(from[1]);
  t.group = int(p.w[1]);
  t.height = int(from[2]);
  t.width = int(from[3]);
  t.out_height = int(to[2]);
  t.out_width = int(to[3]);
  const bool strided = is_strided_gradient(p);
  for (size_t axis = 0; axis < 2; ++axis) {
    const int64_t pad = p.pad_begin[axis], dilation = p.dilation[axis];
    t.stride[axis] = strided ? 1 : int(p.stride[axis]);
    t.dilation[axis] = int(dilation);
    t.pad[axis] = int(strided ? 1 - (pad + 1) / 2 : transposed ? 2 * dilation - pad : pad);
    t.made_pad[axis] = int(pad);
  }
  if (strided) {
    t.made_height = std::exchange(t.out_height, (t.out_height + 1) / 2);
    t.made_width = std::exchange(t.out_width, (t.out_width + 1) / 2);
  }
  const int reach[2] = {strided ? 1 : 2 * t.dilation[0], strided ? 1 : 2 * t.dilation[1]};  // from the first tap on
  t.window_columns = (t.out_width - 1) * t.stride[1] + reach[1] + 1;
  const int window_rows = (kMostWindow / t.window_columns - reach[0] - 1) / t.stride[0] + 1;
  const int most_rows = std::clamp(std::min(kGroupTilePixels / t.out_width, window_rows), 1, t.out_height);
  t.tiles_per_image = (t.out_height + most_rows - 1) / most_rows;
  t.rows = (t.out_height + t.tiles_per_image - 1) / t.tiles_per_image;
  t.window_rows = (t.rows - 1) * t.stride[0] + reach[0] + 1;
  if (t.tiles_per_image == 1) {
    const int fit = std::min(kGroupTilePixels / (t.rows * t.out_width), kMostWindow / t.window_pixels());
    t.tile_images = std::clamp(fit, 1, t.images);
  }
  t.tiles = (t.images + t.tile_images - 1) / t.tile_images * t.tiles_per_image;
  t.tiles_per_block = tiles_of_block(t.tiles, t.channels / Set::kChannels,
                                     multiprocessors * (gradient ? F::kGradientResident : F::kResident));
  t.blocks = (t.tiles + t.tiles_per_block - 1) / t.tiles_per_block;
  return t;
}

template <typename Set>
int shared_of_convolution(const GroupTiling& t) {
  return Set::kFilterBytes + (t.tiles_per_block > 1 ? 2 : 1) * t.window_pixels() * Set::kPitch;
}

void allow(const void* kernel, int bytes) {
  if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) == cudaSuccess) return;
  cudaGetLastError();
  throw RunError("convolutions of narrow groups: too little shared memory");
}

template <typename F, GroupWay Way>
void run_convolution(const ConvolutionProblem& problem, const ConvolutionCall& call) {
  using Set = typename F::Set;
  const GroupTiling t = tiling_of<F>(problem, call.multiprocessors);
  const auto kernel = group_convolution_kernel<F::kWidth, F::kGroups, F::kM, Way>;
  const int shared = shared_of_convolution<Set>(t);
  allow(reinterpret_cast<const void*>(kernel), shared);
  const unsigned parities = Way == GroupWay::StridedGradient ? 4 : 1;
  launch_dependent(kernel, dim3(unsigned(t.blocks), unsigned(t.channels / Set::kChannels), parities), F::kThreadsOf,
                   size_t(shared), call.stream, t, static_cast<const T*>(call.a), static_cast<const T*>(call.b),
                   static_cast<T*>(call.result));
  check_launch("convolution of narrow groups");
}

template <typename F>
void run_filter_gradient(const ConvolutionProblem& problem, const ConvolutionCall& call) {
  const GroupTiling t = tiling_of<F>(problem, call.multiprocessors);
  const auto kernel = group_filter_gradient_kernel<F::kWidth, F::kGroups, F::kSplits>;
  const int shared = F::Gradient::shared_bytes(t);
  auto* const partials = static_cast<float*>(call.workspace);
  allow(reinterpret_cast<const void*>(kernel), shared);
  launch_dependent(kernel, dim3(unsigned(t.blocks), unsigned(t.channels / F::Set::kChannels)), kThreads, size_t(shared),
                   call.stream, t, static_cast<const T*>(call.a), static_cast<const T*>(call.b), partials);
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
           kMostShared;
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
    .revision = "group tiles 5",
    .accepts = takes_group_tiles,
    .is_faster = [](const DeviceModel&, const ConvolutionProblem& problem) { return problem.w[1] <= 32; },
    .workspace = group_tiles_workspace,
    .run = run_group_tiles};

}  // namespace arbalest
