// SPDX-License-Identifier: Apache-2.0

// The kernel for filter gradients of pointwise convolutions, on the CPU.

#include <doctest/doctest.h>

#include <limits>
#include <vector>

#include "tests/lanes/lanes.h"
#include "tests/lanes/numbers.h"
// After what takes the place of CUDA's words.
#include "ops/conv/conv_pixel_sums.cuh"

using namespace arbalest;
using namespace arbalest::cuda;

TEST_CASE("the kernel for filter gradients of pointwise convolutions makes the sums that define them") {
  struct Case {
    int64_t pixels, made, taken;
  };
  // Words of 16 bytes and of 4, every tile, channels that tiles are no multiple of, several tiles and shares.
  const std::vector<Case> cases = {{300, 64, 64},  {300, 58, 58}, {70, 8, 24},    {1, 2, 6},
                                   {290, 24, 120}, {270, 96, 32}, {270, 116, 58}, {140, 128, 136},
                                   {130, 130, 70}, {600, 32, 16}, {64, 22, 88}};
  for (const Case& of : cases) {
    for (const int multiprocessors : {1, 132}) {
      CAPTURE(of.pixels);
      CAPTURE(of.made);
      CAPTURE(of.taken);
      CAPTURE(multiprocessors);
      const auto x = lanes::numbers(size_t(of.pixels * of.taken), 1),
                 dy = lanes::numbers(size_t(of.pixels * of.made), 2);
      const size_t count = size_t(of.made * of.taken);
      std::vector<float> sums(count), expected(count);
      with_pixel_tile(of.made, of.taken, [&](auto tile, auto word) {
        using Tile = decltype(tile);
        const PixelShares s = pixel_shares<Tile>(of.pixels, of.made, of.taken, multiprocessors);
        std::vector<float> partials(size_t(s.shares) * count, std::numeric_limits<float>::quiet_NaN());
        lanes::launch(pixel_grid<Tile>(s), Tile::kThreadsOf, Tile::kSharedBytes, [&] {
          pixel_sums_kernel<Tile::kRows, Tile::kColumns, decltype(word)::value>(s, x.data(), dy.data(),
                                                                                partials.data());
        });
        for (size_t i = 0; i < partials.size(); ++i) sums[i % count] += partials[i];
      });
      for (int64_t pixel = 0; pixel < of.pixels; ++pixel) {
        for (size_t i = 0; i < count; ++i) {
          const size_t to = i / size_t(of.taken), from = i % size_t(of.taken);
          expected[i] += float(dy[size_t(pixel * of.made) + to]) * float(x[size_t(pixel * of.taken) + from]);
        }
      }
      CHECK(sums == expected);
    }
  }
}
