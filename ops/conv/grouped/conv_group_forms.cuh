// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which of the kernels of conv_group_tiles.cuh takes a problem, and how its images are cut into tiles.

#include <algorithm>
#include <utility>

#include "ops/conv/grouped/conv_group_tiles.cuh"
#include "ops/cuda/convolution_engine.h"

namespace arbalest::cuda {

inline constexpr int kMostGroupShared = DeviceModel::kLargeBlock;  // bytes

// How the channels of a group are multiplied: Width · 8 of them, in sets of Groups. A warp of the convolution has M ·
// 16 pixels; Splits of the warps share the rows of the filter's gradient.
template <int WidthOf, int GroupsOf, int MOf, int SplitsOf>
struct GroupForm {
  static constexpr int kWidth = WidthOf, kGroups = GroupsOf, kM = MOf, kSplits = SplitsOf;
  static constexpr int kThreadsOf = kGroupThreads<kGroups, kM>;
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
    case 8: return sets ? function(GroupForm<1, 4, 8, 1>{}) : function(GroupForm<1, 1, 4, 2>{});
    case 16: return sets ? function(GroupForm<2, 2, 4, 2>{}) : function(GroupForm<2, 1, 4, 4>{});
    case 24: return function(GroupForm<3, 1, 4, 4>{});
    case 32: return function(GroupForm<4, 1, 4, 4>{});
    case 40: return function(GroupForm<5, 1, 2, 8>{});
    case 48: return function(GroupForm<6, 1, 2, 8>{});
    case 56: return function(GroupForm<7, 1, 2, 8>{});
    default: return function(GroupForm<8, 1, 2, 8>{});
  }
}

// Tiles of each block, of which the device runs `places` at once: so many that there are few waves, and a full last
// one. A block first reads the filter, or last adds to partial sums, which counts as a tile.
inline int tiles_of_block(int tiles, int sets, int places) {
  constexpr int kMost = 16;
  int best = 1, least = INT32_MAX;
  for (int each = 1; each <= std::min(tiles, kMost); ++each) {
    const int blocks = (tiles + each - 1) / each * sets, time = (blocks + places - 1) / places * (each + 1);
    if (time < least) best = each, least = time;
  }
  return best;
}

inline bool is_strided_gradient(const ConvolutionProblem& p) {
  return p.kind == ConvolutionProblem::Kind::GradInput && !all_are(p.stride, 1);
}

// For the gradient of images windows are of dY, and tiles of dX, or of its pixels with the same parities.
template <typename F>
GroupTiling tiling_of(const ConvolutionProblem& p, int multiprocessors) {
  using Set = typename F::Set;
  // Pixels of a tile's window, if the tile has more than a row.
  constexpr int kMostWindow = std::min({640, (kMostGroupShared - Set::kFilterBytes) / (2 * Set::kPitch),
                                        kMostGroupShared / (2 * Set::kPitch) - kGroupTilePixels});
  const bool transposed = p.kind == ConvolutionProblem::Kind::GradInput,
             gradient = p.kind == ConvolutionProblem::Kind::GradWeight;
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

// Blocks of a convolution kernel: of tiles, of sets of groups, and of parities.
template <typename F>
dim3 group_grid(const GroupTiling& t, GroupWay way) {
  return dim3(unsigned(t.blocks), unsigned(t.channels / F::Set::kChannels), way == GroupWay::StridedGradient ? 4 : 1);
}

}  // namespace arbalest::cuda
