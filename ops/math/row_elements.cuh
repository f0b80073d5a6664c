// SPDX-License-Identifier: Apache-2.0
#pragma once
// The elements of a row, by the lanes of a warp or block, whatever the row's place in memory.

#include "ops/cuda/cuda_math.cuh"

namespace arbalest::cuda {

// Rows of so many elements are read 16 bytes at a time; for shorter ones that was slower (docs/dead-ends.md).
inline constexpr int kLongRow = 4096;

// f(index, pack) for a lane's share of a row. Packs have one element, or, within long rows, those of 16 aligned bytes.
// Those are aligned in the rows `beside` it, too: if not all rows begin as far from such a word, packs have one
// element.
template <int kLanes, typename T, typename Function, typename... Beside>
__device__ inline void for_row(const T* row, int count, int lane, Function f, const Beside*... beside) {
  constexpr int W = int(16 / sizeof(T));
  const auto place = reinterpret_cast<uintptr_t>(row);
  const bool alike = ((((reinterpret_cast<uintptr_t>(beside) ^ place) % 16) == 0) && ...);
  int next = lane;
  if (count >= kLongRow && alike) {
    const int head = int((16 - place % 16) % 16 / sizeof(T)), packs = (count - head) / W;
    if (lane < head) f(lane, load<1>(row + lane));
#pragma unroll 2
    for (int i = lane; i < packs; i += kLanes) f(head + i * W, load<W>(row + head + i * W));
    next = head + packs * W + lane;
  }
  for (; next < count; next += kLanes) f(next, load<1>(row + next));
}

// Adds exponentials of numbers that come one pack after another, less the largest so far. Without numbers, or with −∞
// alone, they are −∞ and 0.
struct RunningExponentials {
  float largest = -INFINITY, sum = 0;

  template <typename T, int W>
  __device__ void add(const Pack<T, W>& pack) {
    float now = largest;
#pragma unroll
    for (int w = 0; w < W; ++w) now = fmaxf(now, widen(pack.element[w]));
    const float shift = now == -INFINITY ? 0 : now;
    if (now > largest) sum *= expf(largest - shift);
    largest = now;
#pragma unroll
    for (int w = 0; w < W; ++w) sum += expf(widen(pack.element[w]) - shift);
  }
  // The sum of this lane's exponentials, less the largest number of all lanes.
  __device__ float sum_less(float greatest) const {
    return sum == 0 ? 0 : sum * expf(largest - greatest);
  }
};

}  // namespace arbalest::cuda
