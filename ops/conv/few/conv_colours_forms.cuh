// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which of the kernels of conv_colours.cuh takes a problem, and how its images are cut into tiles.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "ops/conv/few/conv_colours.cuh"
#include "ops/cuda/convolution_engine.h"

namespace arbalest::cuda {

template <int StepsOf, int JOf, int ParitiesOf>
struct ColoursForm {
  static constexpr int kSteps = StepsOf, kJ = JOf, kParities = ParitiesOf;
  static constexpr int kMadeBytes = kColoursWarps * 16 * kParities * kJ * 16;  // of all warps
};

inline constexpr int kColoursBlocks = 2;             // of a multiprocessor
inline constexpr int kMostColoursShared = 96 << 10;  // bytes of a block

// Steps of 16 numbers that a window takes.
inline int colours_steps(const ColoursTiling& t) {
  return (t.taps_high * t.pairs + 7) / 8;
}

// Tiles of eight channels of a warp.
inline int colours_width(const ColoursTiling& t) {
  return (t.made + 8 * t.across - 1) / (8 * t.across);
}

// function(form) for the smallest form that is large enough. False: there is none.
template <typename Function>
bool with_colours_form(const ColoursTiling& t, Function function) {
  const int steps = colours_steps(t), width = colours_width(t);
  const auto with_width = [&](auto most_steps, auto parities) {
    constexpr int kSteps = decltype(most_steps)::value, kParities = decltype(parities)::value;
    if (width <= 2) {
      function(ColoursForm<kSteps, 2, kParities>{});
    } else if (width <= 3) {
      function(ColoursForm<kSteps, 3, kParities>{});
    } else {
      function(ColoursForm<kSteps, 4, kParities>{});
    }
    return true;
  };
  const auto with_parities = [&](auto most_steps) {
    return t.parities == 1 ? with_width(most_steps, std::integral_constant<int, 1>{})
                           : with_width(most_steps, std::integral_constant<int, 2>{});
  };
  if (steps <= 2) return with_parities(std::integral_constant<int, 2>{});
  if (steps <= 3) return with_parities(std::integral_constant<int, 3>{});
  if (steps <= 5) return with_parities(std::integral_constant<int, 5>{});
  return false;
}

inline int colours_shared_bytes(const ColoursTiling& t, bool gradient) {
  int bytes = 0;
  with_colours_form(t, [&](auto form) {
    using F = decltype(form);
    const int sums = F::kParities * F::kSteps * 16 * t.across * F::kJ * 8 * int(sizeof(float));
    bytes = 2 * t.band_bytes() + (gradient ? sums : F::kMadeBytes);
  });
  return bytes;
}

// Rows of a tile so that blocks, of which each multiprocessor has two, end soonest. A tile takes time for what its
// warps multiply, for what is copied, and for waiting.
inline int colours_rows(ColoursTiling t, int multiprocessors, bool gradient) {
  constexpr int kUnitTime = 100, kBytesOfTime = 12, kTileTime = 700;
  const int shares = kColoursWarps / t.across, blocks = kColoursBlocks * multiprocessors;
  int best = 1;
  int64_t least = INT64_MAX;
  for (t.rows = 1; t.rows <= t.out_height; ++t.rows) {
    const int bytes = colours_shared_bytes(t, gradient);
    if (bytes == 0 || (t.rows > 1 && bytes > kMostColoursShared / 2)) break;  // 0: no form takes it
    const int units = (t.rows * t.columns + 16 * t.parities - 1) / (16 * t.parities);
    const int64_t tiles = int64_t{t.images} * ((t.out_height + t.rows - 1) / t.rows);
    const int64_t turns = (tiles + blocks - 1) / blocks;
    const int64_t time = turns * (int64_t{(units + shares - 1) / shares} * t.parities * kUnitTime +
                                  t.band_bytes() / kBytesOfTime + kTileTime);
    if (time < least) best = t.rows, least = time;
  }
  return best;
}

inline ColoursTiling colours_tiling(const ConvolutionProblem& p, int multiprocessors) {
  constexpr int kMostWidth = 4;  // tiles of eight channels of a warp
  const int colours = int(p.x[1]);
  ColoursTiling t;
  t.images = int(p.x[0]);
  t.height = int(p.x[2]);
  t.row_numbers = int(p.x[3]) * colours;
  t.made = int(p.y[1]);
  t.out_height = int(p.y[2]);
  t.out_width = int(p.y[3]);
  t.taps_high = int(p.w[2]);
  t.run = int(p.w[3]) * colours;
  t.stride_high = int(p.stride[0]);
  t.step = int(p.stride[1]) * colours;
  t.pad_top = int(p.pad_begin[0]);
  t.first = -int(p.pad_begin[1]) * colours;
  t.parities = t.step % 2 == 0 ? 1 : 2;
  const int most_odd = t.parities == 2 ? 1 : t.odd(0);
  t.pairs = (t.run + most_odd + 1) / 2;
  t.columns = (t.out_width + t.parities - 1) / t.parities * t.parities;
  t.margin = (1 - t.first + 7) / 8 * 8;
  const int last = (t.columns - 1) * t.step + t.first + 2 * t.pairs;  // number after the last window's
  t.pitch = t.margin + (std::max(t.row_numbers, last) + 7) / 8 * 8;
  while (t.across < kColoursWarps && t.made > t.across * kMostWidth * 8) t.across *= 2;
  t.rows = colours_rows(t, multiprocessors, p.kind == ConvolutionProblem::Kind::GradWeight);
  t.bands = (t.out_height + t.rows - 1) / t.rows;
  t.tiles = t.images * t.bands;
  t.blocks = std::min(t.tiles, kColoursBlocks * multiprocessors);
  return t;
}

}  // namespace arbalest::cuda
