// SPDX-License-Identifier: Apache-2.0
#include "io/sources/glyph_strokes.h"

#include <array>

namespace arbalest {

namespace {

Stroke line(std::vector<Point> points) {
  return {false, std::move(points)};
}
Stroke curve(std::vector<Point> points) {
  return {true, std::move(points)};
}

using Variants = std::vector<Glyph>;

Variants zero() {
  const Stroke oval = curve({{.50f, .00f},
                             {.20f, .15f},
                             {.10f, .50f},
                             {.20f, .85f},
                             {.50f, 1.0f},
                             {.80f, .85f},
                             {.90f, .50f},
                             {.80f, .15f},
                             {.50f, .00f}});
  const Stroke narrow = curve({{.55f, .00f},
                               {.30f, .18f},
                               {.22f, .55f},
                               {.32f, .90f},
                               {.52f, 1.0f},
                               {.72f, .82f},
                               {.78f, .45f},
                               {.70f, .12f},
                               {.48f, .02f}});
  return {{oval}, {narrow}, {oval, line({{.72f, .22f}, {.28f, .78f}})}};
}

Variants one() {
  return {{line({{.50f, .00f}, {.50f, 1.0f}})},
          {line({{.28f, .24f}, {.52f, .00f}, {.52f, 1.0f}})},
          {line({{.28f, .24f}, {.52f, .00f}, {.52f, 1.0f}}), line({{.26f, 1.0f}, {.78f, 1.0f}})}};
}

Variants two() {
  return {{curve({{.14f, .28f}, {.26f, .06f}, {.55f, .00f}, {.80f, .12f}, {.82f, .36f}, {.58f, .65f}, {.14f, 1.0f}}),
           line({{.14f, 1.0f}, {.88f, 1.0f}})},
          {curve({{.18f, .20f},
                  {.45f, .00f},
                  {.78f, .12f},
                  {.78f, .40f},
                  {.50f, .75f},
                  {.25f, .98f},
                  {.14f, .84f},
                  {.32f, .78f},
                  {.60f, .95f},
                  {.90f, .92f}})},
          {line({{.16f, .06f}, {.62f, .02f}, {.82f, .22f}, {.16f, .98f}, {.86f, .98f}})}};
}

Variants three() {
  const Stroke belly = curve({{.42f, .46f}, {.74f, .54f}, {.86f, .76f}, {.66f, .97f}, {.38f, 1.0f}, {.12f, .86f}});
  return {{curve({{.16f, .14f}, {.42f, .00f}, {.74f, .08f}, {.78f, .30f}, {.42f, .46f}}), belly},
          {line({{.14f, .00f}, {.80f, .00f}, {.44f, .42f}}),
           curve({{.44f, .42f}, {.74f, .50f}, {.86f, .74f}, {.64f, .98f}, {.34f, 1.0f}, {.12f, .88f}})},
          {curve({{.20f, .04f}, {.60f, .02f}, {.76f, .24f}, {.36f, .48f}, {.78f, .66f}, {.70f, .94f}, {.16f, .98f}})}};
}

Variants four() {
  return {{line({{.66f, 1.0f}, {.66f, .00f}, {.08f, .68f}, {.92f, .68f}})},
          {line({{.22f, .00f}, {.14f, .56f}, {.88f, .56f}}), line({{.72f, .04f}, {.70f, 1.0f}})},
          {curve({{.24f, .00f}, {.14f, .36f}, {.30f, .56f}, {.74f, .48f}}), line({{.78f, .00f}, {.68f, 1.0f}})}};
}

Variants five() {
  const Stroke belly = curve({{.20f, .46f}, {.50f, .36f}, {.80f, .48f}, {.86f, .74f}, {.62f, .98f}, {.14f, .92f}});
  return {{line({{.80f, .00f}, {.24f, .00f}, {.20f, .46f}}), belly},
          {curve({{.82f, .02f},
                  {.50f, .04f},
                  {.24f, .02f},
                  {.22f, .44f},
                  {.56f, .42f},
                  {.82f, .62f},
                  {.66f, .94f},
                  {.16f, 1.0f}})},
          {line({{.84f, .02f}, {.28f, .02f}, {.22f, .44f}, {.66f, .44f}, {.84f, .66f}, {.64f, .98f}, {.14f, .98f}})}};
}

Variants six() {
  return {{curve({{.74f, .02f},
                  {.40f, .18f},
                  {.18f, .56f},
                  {.24f, .90f},
                  {.52f, 1.0f},
                  {.82f, .86f},
                  {.78f, .60f},
                  {.50f, .50f},
                  {.20f, .68f}})},
          {line({{.62f, .00f}, {.20f, .66f}}),
           curve({{.20f, .66f}, {.24f, .92f}, {.52f, 1.0f}, {.80f, .88f}, {.80f, .62f}, {.52f, .50f}, {.24f, .60f}})},
          {curve({{.80f, .12f},
                  {.52f, .00f},
                  {.24f, .20f},
                  {.14f, .60f},
                  {.30f, .96f},
                  {.66f, .98f},
                  {.84f, .74f},
                  {.62f, .50f},
                  {.28f, .54f},
                  {.16f, .70f}})}};
}

Variants seven() {
  return {{line({{.12f, .00f}, {.86f, .00f}, {.40f, 1.0f}})},
          {line({{.12f, .02f}, {.86f, .00f}, {.42f, 1.0f}}), line({{.34f, .50f}, {.80f, .50f}})},
          {line({{.14f, .16f}, {.16f, .00f}, {.84f, .00f}}), curve({{.84f, .00f}, {.58f, .40f}, {.46f, 1.0f}})}};
}

Variants eight() {
  const Stroke upper =
      curve({{.50f, .00f}, {.24f, .10f}, {.22f, .34f}, {.50f, .46f}, {.78f, .34f}, {.76f, .10f}, {.50f, .00f}});
  const Stroke lower =
      curve({{.50f, .46f}, {.16f, .60f}, {.16f, .88f}, {.50f, 1.0f}, {.84f, .88f}, {.84f, .60f}, {.50f, .46f}});
  return {{upper, lower},
          {curve({{.76f, .14f},
                  {.50f, .00f},
                  {.24f, .14f},
                  {.32f, .38f},
                  {.70f, .60f},
                  {.80f, .86f},
                  {.50f, 1.0f},
                  {.20f, .86f},
                  {.30f, .60f},
                  {.68f, .38f},
                  {.76f, .14f}})}};
}

Variants nine() {
  const Stroke loop =
      curve({{.78f, .34f}, {.50f, .50f}, {.20f, .40f}, {.18f, .14f}, {.48f, .00f}, {.78f, .12f}, {.80f, .34f}});
  return {{loop, line({{.80f, .30f}, {.74f, 1.0f}})},
          {loop, curve({{.80f, .30f}, {.80f, .66f}, {.60f, .98f}, {.22f, .94f}})},
          {curve({{.76f, .28f},
                  {.52f, .50f},
                  {.24f, .38f},
                  {.26f, .10f},
                  {.56f, .00f},
                  {.78f, .18f},
                  {.74f, .56f},
                  {.44f, 1.0f}})}};
}

}  // namespace

std::span<const Glyph> glyphs_of(int digit) {
  static const std::array<Variants, 10> all = {zero(), one(), two(),   three(), four(),
                                               five(), six(), seven(), eight(), nine()};
  return all[size_t(digit)];
}

}  // namespace arbalest
