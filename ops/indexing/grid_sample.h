// SPDX-License-Identifier: Apache-2.0
#pragma once
// GridSample: which elements of a tensor a place between them is made of, along each axis. CPUs and GPUs share it.

#include <cmath>
#include <cstdint>

#include "base/host_device.h"
#include "graph/kernel.h"

namespace arbalest {

struct GridSampleInput {
  enum : size_t { X, Grid };
};
struct GridSampleGradInput {
  enum : size_t { dY, Grid };
};
struct GridSampleGridGradInput {
  enum : size_t { dY, X, Grid };
};

enum class Between : uint8_t { Linear, Nearest, Cubic };
enum class Beyond : uint8_t { Zeros, Border, Reflection };

struct GridRule {
  Between between;
  Beyond beyond;
  bool corners;  // −1 and 1 are the centres of the first and the last element, not their outer edges
};

// A place along an axis, in elements, and what it grows by with the coordinate.
template <typename W>
struct AxisPlace {
  W value, slope;
};

// The elements along an axis that a place is made of.
template <typename W>
struct Taps {
  static constexpr int kMost = 4;
  int count = 0;
  int64_t at[kMost];              // −1: outside of the tensor, where all is 0
  W weight[kMost], slope[kMost];  // slope: what the weight grows by with the coordinate

  // NaN stays one in the weight.
  ARBALEST_HOST_DEVICE void add(W place, int64_t extent, W of_weight, W of_slope) {
    const bool inside = place >= W(0) && place <= W(extent - 1);
    at[count] = inside ? int64_t(place) : place == place ? -1 : 0;
    weight[count] = of_weight;
    slope[count++] = of_slope;
  }
};

// Turned back at the outer edges, or at the outer centres.
template <typename W>
ARBALEST_HOST_DEVICE AxisPlace<W> reflected(AxisPlace<W> place, W low, W span) {
  if (!(span > 0)) return {W(0), W(0)};
  const bool below = place.value < low;
  const W far = below ? low - place.value : place.value - low;
  const W turns = std::floor(far / span), rest = far - turns * span;
  const bool back = std::fmod(turns, W(2)) != W(0);
  return {back ? span - rest + low : rest + low, below != back ? -place.slope : place.slope};
}

template <typename W>
ARBALEST_HOST_DEVICE AxisPlace<W> brought_inside(const GridRule& rule, AxisPlace<W> place, int64_t extent) {
  if (rule.beyond == Beyond::Zeros) return place;
  if (rule.beyond == Beyond::Reflection) {
    place = rule.corners ? reflected(place, W(0), W(extent - 1)) : reflected(place, W(-0.5), W(extent));
  }
  if (place.value <= W(0)) return {W(0), W(0)};
  if (place.value >= W(extent - 1)) return {W(extent - 1), W(0)};
  return place;
}

// Coefficients of the four elements around a place, at 1 + f, f, 1 − f and 2 − f from it, and their derivatives by f.
template <typename W>
struct CubicWeights {
  W value[4], slope[4];

  ARBALEST_HOST_DEVICE explicit CubicWeights(W f) {
    const W a = W(-0.75), from[4] = {f + 1, f, 1 - f, 2 - f};
    for (int i = 0; i < 4; ++i) {
      const W x = from[i], sign = i < 2 ? W(1) : W(-1);
      const bool near = i == 1 || i == 2;
      value[i] = near ? ((a + 2) * x - (a + 3)) * x * x + 1 : ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
      slope[i] = sign * (near ? (3 * (a + 2) * x - 2 * (a + 3)) * x : (3 * a * x - 10 * a) * x + 8 * a);
    }
  }
};

template <typename W>
ARBALEST_HOST_DEVICE Taps<W> taps_at(const GridRule& rule, W coordinate, int64_t extent) {
  AxisPlace<W> place = rule.corners ? AxisPlace<W>{(coordinate + 1) / 2 * W(extent - 1), W(extent - 1) / 2}
                                    : AxisPlace<W>{((coordinate + 1) * W(extent) - 1) / 2, W(extent) / 2};
  if (rule.between != Between::Cubic) place = brought_inside(rule, place, extent);
  Taps<W> taps;
  if (rule.between == Between::Nearest) {
    taps.add(std::rint(place.value), extent, place.value == place.value ? W(1) : place.value, W(0));
    return taps;
  }
  const W low = std::floor(place.value), f = place.value - low;
  if (rule.between == Between::Linear) {
    taps.add(low, extent, 1 - f, -place.slope);
    taps.add(low + 1, extent, f, place.slope);
    return taps;
  }
  const CubicWeights<W> weights(f);
  for (int i = 0; i < 4; ++i) {
    const AxisPlace<W> tap = brought_inside(rule, AxisPlace<W>{low + W(i - 1), W(0)}, extent);
    taps.add(tap.value, extent, weights.value[i], weights.slope[i] * place.slope);
  }
  return taps;
}

// Extents of a node, and the way in which its tensors lie in memory. X (N, C, …), grid (N, …, axes), Y (N, C, …).
struct GridSampling {
  static constexpr int kMostAxes = 3;
  GridRule rule;
  int axes;
  int64_t samples, channels, pixels, places;  // pixels of a channel of X, and of Y
  int64_t extent[kMostAxes] = {};             // of X
  int64_t first;                              // places along the first axis of the grid after the samples
  bool grid_turned;                           // that axis is the innermost
  struct Strides {
    int64_t channel, pixel;
  } x, y;

  // `x` and `y`: of X and Y, or of their gradients.
  GridSampling(const Node& node, const TensorType& x, const TensorType& grid, const TensorType& y);

  // Coordinates of X's axes come innermost first.
  ARBALEST_HOST_DEVICE int64_t grid_at(int64_t sample, int64_t place, int axis) const {
    const int64_t base = sample * places * axes, rest = places / first, last = axes - 1 - axis;
    if (!grid_turned) return base + place * axes + last;
    return base + (place % rest * axes + last) * first + place / rest;
  }
};

// The elements of X that a place of Y is made of.
template <typename W>
struct SampledPlace {
  Taps<W> taps[GridSampling::kMostAxes];
  int axes, count = 1;

  ARBALEST_HOST_DEVICE SampledPlace(const GridSampling& s, const W* grid, int64_t sample, int64_t place)
      : axes(s.axes) {
    for (int axis = 0; axis < axes; ++axis) {
      taps[axis] = taps_at(s.rule, grid[s.grid_at(sample, place, axis)], s.extent[axis]);
      count *= taps[axis].count;
    }
  }

  // f(pixel of X, weight, tap along each axis) for each that is inside.
  template <typename F>
  ARBALEST_HOST_DEVICE void for_each(const GridSampling& s, const F& f) const {
    for (int i = 0; i < count; ++i) {
      int rest = i, tap[GridSampling::kMostAxes];
      int64_t pixel = 0, step = 1;
      W weight = 1;
      bool inside = true;
      for (int axis = axes - 1; axis >= 0; --axis) {
        tap[axis] = rest % taps[axis].count;
        rest /= taps[axis].count;
        const int64_t at = taps[axis].at[tap[axis]];
        inside = inside && at >= 0;
        pixel += at * step;
        step *= s.extent[axis];
        weight *= taps[axis].weight[tap[axis]];
      }
      if (inside) f(pixel, weight, tap);
    }
  }

  // How much the weight of these taps grows with the coordinate along `axis`.
  ARBALEST_HOST_DEVICE W slope(const int* tap, int axis) const {
    W slope = 1;
    for (int i = 0; i < axes; ++i) slope *= i == axis ? taps[i].slope[tap[i]] : taps[i].weight[tap[i]];
    return slope;
  }
};

}  // namespace arbalest
