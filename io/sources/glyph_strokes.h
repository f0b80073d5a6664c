// SPDX-License-Identifier: Apache-2.0
#pragma once
// How the digits of the glyphs source are drawn: strokes through points, several variants a digit. Internal to io.

#include <span>
#include <vector>

namespace arbalest {

// x to the right, y down; a digit fills about [0, 1] × [0, 1].
struct Point {
  float x = 0, y = 0;
};

// A line through points, straight from one to the next or smooth (a Catmull-Rom spline).
struct Stroke {
  bool smooth = false;
  std::vector<Point> points;
};

using Glyph = std::vector<Stroke>;

// The variants of a digit, 0 … 9.
std::span<const Glyph> glyphs_of(int digit);

}  // namespace arbalest
