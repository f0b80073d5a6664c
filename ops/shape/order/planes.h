// SPDX-License-Identifier: Apache-2.0
#pragma once
// Transpositions between planes and pixels: a few channels, each with many positions, and the channels of each position
// side by side.

#include <algorithm>
#include <optional>

#include "ops/math/divisor.h"
#include "ops/shape/order/transposition.h"

namespace arbalest {

// How a transposition is cut into tiles that go through shared memory as planes. A tile has some positions of one
// matrix, or all of several matrices that are adjacent in memory. Lengths and distances are in elements.
struct PlaneTiles {
  static constexpr int64_t kMostChannels = 32, kTileBytes = 16384;

  bool from_planes = true;  // x holds planes, y pixels; or the other way round
  int channels = 2;
  int64_t positions = 2;  // of a plane
  int64_t distance = 2;   // between the planes of a matrix, in memory
  int images = 1;         // matrices of a tile
  int length = 2;         // positions that a tile has of each plane
  int step = 2;           // between planes in shared memory: a plane has the alignment that it has in memory
  bool joined = false;    // a tile's planes lie without gaps in both, and are moved as one
  int64_t tiles = 1;      // of a matrix, or of `images` matrices
  int64_t count = 0;      // of all tiles
  Divisor of_channels, of_length, of_packs;

  // Tiles for elements of so many bytes. There are none if both axes are long, if pixels have gaps, or if matrices are
  // too small to be worth a tile each.
  static std::optional<PlaneTiles> of(const Transposition& t, int64_t bytes) {
    PlaneTiles p;
    p.from_planes = t.rows <= t.columns;
    p.positions = std::max(t.rows, t.columns);
    const int64_t channels = std::min(t.rows, t.columns), matrix = channels * p.positions;
    if (channels < 2 || channels > kMostChannels || (p.from_planes ? t.to_step : t.from_step) != channels) return {};
    p.channels = int(channels);
    p.distance = p.from_planes ? t.from_step : t.to_step;
    const int64_t pack = 16 / bytes, most = kTileBytes / bytes;
    if (t.adjacent()) {
      p.images = int(std::clamp<int64_t>(most / matrix, 1, std::max<int64_t>(1, t.matrices.count)));
    } else if (matrix < most / 16) {
      return {};
    }
    p.tiles = matrix <= most ? 1 : (matrix + most - 1) / most;
    const int64_t even = (p.positions + p.tiles - 1) / p.tiles;
    p.length = int(std::min(p.positions, (even + pack - 1) / pack * pack));
    p.tiles = (p.positions + p.length - 1) / p.length;
    p.count = (t.matrices.count + p.images - 1) / p.images * p.tiles;
    p.joined = p.tiles == 1 && p.distance == p.positions && p.positions % pack != 0;
    // An odd number of packs between planes, so that those of neighbouring channels are in different banks.
    const int64_t rest = p.distance % pack, packs = std::max<int64_t>(0, (p.length - rest + pack - 1) / pack);
    p.step = p.joined ? p.length : int(rest + (packs | 1) * pack);
    p.of_channels = Divisor(channels);
    p.of_length = Divisor(p.length);
    p.of_packs = Divisor(p.packs(pack));
    return p;
  }

  // Packs that a plane, or the planes of a tile as one, may touch in memory, wherever they begin.
  ARBALEST_HOST_DEVICE int packs(int64_t pack) const {
    return int(((joined ? images * channels : 1) * length + 2 * pack - 2) / pack);
  }
  // Shared memory of a block, with room for a row that begins within a pack and one that ends there.
  int64_t shared_bytes(int64_t bytes) const { return int64_t(images) * channels * step * bytes + 32; }
};

}  // namespace arbalest
