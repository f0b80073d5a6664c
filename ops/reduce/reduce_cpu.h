// SPDX-License-Identifier: Apache-2.0
#pragma once
// CPU loops of reductions over any axes. Sums are in double, of integers in int64, always in the same order.

#include <algorithm>
#include <type_traits>

#include "ops/cpu.h"
#include "ops/reduce/reduce_table.h"
#include "ops/reduce/sum_axes.h"

namespace arbalest {

template <typename T>
using Accumulator = std::conditional_t<std::is_integral_v<T>, int64_t, double>;

template <typename T, typename A>
T rounded(A value) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    return bfloat16(float(value));
  } else {
    return static_cast<T>(value);
  }
}

// Neighbouring outputs that one thread computes side by side, if the innermost axis is kept or has few elements.
constexpr int64_t kColumns = 64;

// The walk with columns along the innermost axis that is kept, and their step in x.
struct ColumnWalk {
  SumAxes axes;
  int64_t step = 1;

  explicit ColumnWalk(const SumAxes& sums) : axes(sums) {
    constexpr int64_t kFew = 64;  // more are added up faster in lanes
    if (axes.inner != 1 || axes.reduced.count > kFew || axes.kept.rank == 0) return;
    const int last = --axes.kept.rank;
    axes.inner = axes.kept.extent[last];
    axes.kept.count = 1;  // no quotient: an extent may be 0
    for (int axis = 0; axis < last; ++axis) axes.kept.count *= axes.kept.extent[axis];
    step = axes.kept.stride[0][last];
    axes.inner_stride = axes.kept.stride[1][last];
  }
};

// `columns` outputs from x + offset(kept axes), `step` elements of x apart; c: what each is centred on.
template <typename Reduction, typename T, typename A = Accumulator<T>>
void reduce_columns(const SumAxes& axes, int64_t columns, int64_t step, const T* x, const A* c, A* totals) {
  using Combination = typename Reduction::Combination;
  std::fill(totals, totals + columns, Combination::template empty<T, A>());
  const auto add = [&](const T* from, int64_t apart) {
    for (int64_t i = 0; i < columns; ++i) {
      totals[i] = Combination::combine(totals[i], Reduction::term(static_cast<A>(from[i * apart]), c[i]));
    }
  };
  for (int64_t r = 0; r < axes.reduced.count; ++r) {
    const T* from = x + axes.reduced.offset(r, 0);
    step == 1 ? add(from, 1) : add(from, step);
  }
}

// One output, in lanes that a compiler may keep in one register.
template <typename Reduction, typename T, typename A = Accumulator<T>>
A reduce_vector(const SumAxes& axes, const T* x, A c) {
  using Combination = typename Reduction::Combination;
  constexpr int kLanes = 8;
  const AxisList& reduced = axes.reduced;
  const int last = reduced.rank - 1;
  const int64_t run = last < 0 ? 1 : reduced.extent[last], step = last < 0 ? 0 : reduced.stride[0][last];
  A lane[kLanes];
  std::fill(lane, lane + kLanes, Combination::template empty<T, A>());
  const auto take = [&](A& into, T element) {
    into = Combination::combine(into, Reduction::term(static_cast<A>(element), c));
  };
  for (int64_t r = 0; r < reduced.count; r += run) {
    const T* from = x + reduced.offset(r, 0);
    int64_t k = 0;
    for (; k + kLanes <= run; k += kLanes) {
      for (int64_t l = 0; l < kLanes; ++l) take(lane[l], from[(k + l) * step]);
    }
    for (; k < run; ++k) take(lane[0], from[k * step]);
  }
  for (int l = 1; l < kLanes; ++l) lane[0] = Combination::combine(lane[0], lane[l]);
  return lane[0];
}

// y[kept axes] = the reduction of x over the reduced ones. `centre`: as y; read if the reduction is centred, and may
// be y itself.
template <typename Reduction, typename T, typename Out>
void reduce(const SumAxes& sums, const T* x, const Out* centre, Out* y) {
  using A = Accumulator<T>;
  const ColumnWalk walk(sums);
  const SumAxes& axes = walk.axes;
  const A count = static_cast<A>(axes.reduced.count);
  const int64_t blocks = (axes.inner + kColumns - 1) / kColumns;
  parallel_for(axes.kept.count * blocks, axes.reduced.count * std::min(axes.inner, kColumns),
               [=, &axes, step = walk.step](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   const int64_t kept = i / blocks, first = i % blocks * kColumns;
                   const int64_t columns = std::min(kColumns, axes.inner - first);
                   const T* from = x + axes.kept.offset(kept, 0) + first * step;
                   const int64_t to = axes.kept.offset(kept, 1) + first * axes.inner_stride;
                   A totals[kColumns], c[kColumns] = {};
                   if constexpr (Reduction::kCentred) {
                     for (int64_t k = 0; k < columns; ++k) {
                       c[k] = Reduction::centre(static_cast<A>(centre[to + k * axes.inner_stride]));
                     }
                   }
                   if (axes.inner == 1) {
                     totals[0] = reduce_vector<Reduction>(axes, from, c[0]);
                   } else {
                     reduce_columns<Reduction>(axes, columns, step, from, c, totals);
                   }
                   for (int64_t k = 0; k < columns; ++k) {
                     y[to + k * axes.inner_stride] = rounded<Out>(Reduction::value(totals[k], count, c[k]));
                   }
                 }
               });
}

}  // namespace arbalest
