// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of Softmax, LogSoftmax and their gradients: a warp a vector, or a block if vectors are long and few.
// Vectors whose elements lie apart, with other vectors between, are taken side by side.

#include "ops/cuda/sums.cuh"
#include "ops/math/row_elements.cuh"
#include "ops/math/strided.h"
#include "ops/names.h"

namespace arbalest {

using namespace cuda;

namespace {

template <int G>
__device__ inline float group_max(float x) {
  x = warp_max(x);
  if constexpr (G > 32) {
    __shared__ float largest[G / 32];
    __syncthreads();  // an earlier call's readers are done
    if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = x;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < G / 32; ++warp) x = fmaxf(x, largest[warp]);
  }
  return x;
}

// f(first element, this thread's place in the group) for each vector; all threads of a group call it together.
template <int G, typename Function>
__device__ inline void for_each_vector(const AxisVectors& v, Function f) {
  for (int64_t i = thread_index() / G; i < v.count; i += thread_count() / G) {
    f(v.first(i), int(threadIdx.x) % G);
  }
}

__device__ inline bool is_long_row(const AxisVectors& v) {
  return v.step == 1 && v.length >= kLongRow && v.length <= INT32_MAX;
}

// Reads the row twice, 16 bytes at a time.
template <bool kLogarithm, int G, typename T>
__device__ inline void softmax_of_long_row(const T* x, int length, int lane, T* y) {
  RunningExponentials own;
  for_row<G>(x, length, lane, [&](int, const auto& pack) { own.add(pack); });
  const float largest = group_max<G>(own.largest), sum = group_sum<G>(own.sum_less(largest));
  const float factor = kLogarithm ? logf(sum) : 1 / sum;
  const auto write = [&]<int W>(int k, const Pack<T, W>& pack) {
    Pack<T, W> result;
#pragma unroll
    for (int w = 0; w < W; ++w) {
      const float shifted = widen(pack.element[w]) - largest;
      result.element[w] = narrow<T>(kLogarithm ? shifted - factor : expf(shifted) * factor);
    }
    store(y + k, result);
  };
  for_row<G>(x, length, lane, write, y);
}

template <bool kLogarithm, int G, typename T>
__global__ void __launch_bounds__(kThreads) softmax_kernel(AxisVectors v, const T* x, T* y) {
  for_each_vector<G>(v, [&](int64_t first, int lane) {
    if (is_long_row(v)) return softmax_of_long_row<kLogarithm, G>(x + first, int(v.length), lane, y + first);
    float largest = -INFINITY, sum = 0;
    for (int64_t k = lane; k < v.length; k += G) largest = fmaxf(largest, widen(x[first + k * v.step]));
    largest = group_max<G>(largest);
    for (int64_t k = lane; k < v.length; k += G) sum += expf(widen(x[first + k * v.step]) - largest);
    sum = group_sum<G>(sum);
    for (int64_t k = lane; k < v.length; k += G) {
      const float shifted = widen(x[first + k * v.step]) - largest;
      y[first + k * v.step] = narrow<T>(kLogarithm ? shifted - logf(sum) : expf(shifted) / sum);
    }
  });
}

// The softmax of −∞ alone is NaN. Masked attention puts 0 in its place, and nothing flows back.
__device__ inline float share_of(float y) {
  return isnan(y) ? 0 : y;
}

// dot: the sum of dY, or of dY · Y.
template <bool kLogarithm>
__device__ inline float softmax_gradient(float above, float y, float dot) {
  return kLogarithm ? above - expf(y) * dot : share_of(y) * (above - dot);
}

template <bool kLogarithm, int G, typename T>
__device__ inline void gradient_of_long_row(const T* dy, const T* y, int length, int lane, T* dx) {
  float dot = 0;
  const auto add = [&]<int W>(int k, const Pack<T, W>& above) {
    const Pack<T, W> value = load<W>(y + k);
#pragma unroll
    for (int w = 0; w < W; ++w) dot += widen(above.element[w]) * (kLogarithm ? 1 : share_of(widen(value.element[w])));
  };
  for_row<G>(dy, length, lane, add, y);
  dot = group_sum<G>(dot);
  const auto write = [&]<int W>(int k, const Pack<T, W>& above) {
    Pack<T, W> value = load<W>(y + k);
#pragma unroll
    for (int w = 0; w < W; ++w) {
      value.element[w] = narrow<T>(softmax_gradient<kLogarithm>(widen(above.element[w]), widen(value.element[w]), dot));
    }
    store(dx + k, value);
  };
  for_row<G>(dy, length, lane, write, y, dx);
}

template <bool kLogarithm, int G, typename T>
__global__ void __launch_bounds__(kThreads) softmax_grad_kernel(AxisVectors v, const T* dy, const T* y, T* dx) {
  for_each_vector<G>(v, [&](int64_t first, int lane) {
    if (is_long_row(v)) {
      return gradient_of_long_row<kLogarithm, G>(dy + first, y + first, int(v.length), lane, dx + first);
    }
    float dot = 0;
    for (int64_t k = lane; k < v.length; k += G) {
      const int64_t i = first + k * v.step;
      dot += kLogarithm ? widen(dy[i]) : widen(dy[i]) * share_of(widen(y[i]));
    }
    dot = group_sum<G>(dot);
    for (int64_t k = lane; k < v.length; k += G) {
      const int64_t i = first + k * v.step;
      dx[i] = narrow<T>(softmax_gradient<kLogarithm>(widen(dy[i]), widen(y[i]), dot));
    }
  });
}

// How a block's threads share neighbouring vectors, whose elements are next to each other. A word has an element of
// each of a few vectors. A tile is `across` neighbouring words and all that belong to the same vectors.
struct Neighbours {
  static constexpr int kHeld = 16;  // words that a thread keeps

  int64_t words = 1, cut = 1;  // words of a step, and tiles side by side in it
  int64_t count = 0;           // of all tiles
  int across = 1, rows = 1;    // of a tile's threads
  int tiles = 1;               // of a block

  // `width`: elements of a word, which divides the step.
  Neighbours(const AxisVectors& v, int width) : words(v.step / width) {
    if (v.count == 0) return;
    const auto parts = [](int64_t whole, int64_t part) { return (whole + part - 1) / part; };
    const int64_t keeping = parts(v.length, kHeld);  // rows that keep a tile in registers
    cut = parts(words, std::clamp<int64_t>(kThreads / keeping, 8, 32));
    count = v.count / v.step * cut;
    across = int(parts(words, cut));
    // Eight words are a sector of memory.
    const int64_t few = std::max(keeping, std::min(v.length, parts(8, across)));
    const int64_t even = parts(few, 4) * 4;
    rows = int(std::min<int64_t>(even <= v.length ? even : few, kThreads / across));
    tiles = kThreads / (across * rows);
  }
  int64_t blocks() const { return (count + tiles - 1) / tiles; }
};

// A thread's part of a tile: W vectors, and every rows-th of their elements.
template <int W>
struct Seat {
  int tile, row, column;
  int64_t first = 0;  // the vectors' first elements
  int64_t length;     // 0 if the thread has no part
  int64_t stride;     // between elements of the thread

  __device__ Seat(const AxisVectors& v, const Neighbours& n)
      : tile(int(threadIdx.x) / (n.across * n.rows)),
        row(int(threadIdx.x) / n.across % n.rows),
        column(int(threadIdx.x) % n.across),
        stride(n.rows * v.step) {
    const int64_t index = int64_t(blockIdx.x) * n.tiles + tile, outer = n.cut == 1 ? index : index / n.cut;
    const int64_t word = (index - outer * n.cut) * n.across + column;
    first = outer * v.step * v.length + row * v.step + word * W;
    length = tile < n.tiles && index < n.count && word < n.words ? v.length : 0;
  }
  // f(i, offset) for those elements that a thread keeps; all i are constants.
  template <typename Function>
  __device__ void for_each_held(const Neighbours& n, Function f) const {
    const int end = int(min(length, int64_t(Neighbours::kHeld) * n.rows));
#pragma unroll
    for (int i = 0; i < Neighbours::kHeld; ++i) {
      if (row + i * n.rows >= end) break;
      f(i, first + i * stride);
    }
  }
  // f(offset) for the others.
  template <typename Function>
  __device__ void for_each_other(const Neighbours& n, Function f) const {
    for (int64_t i = Neighbours::kHeld; row + i * n.rows < length; ++i) f(first + i * stride);
  }
};

// total(rows, at) of the values at(0), at(1), … of a tile's rows, for each of W vectors; every thread gets its own
// vectors' totals. All threads of a block call it, once.
template <int W, typename Value, typename Total>
__device__ inline void combine_rows(const Neighbours& n, const Seat<W>& seat, Value (&value)[W], Total total) {
  constexpr int kPadded = kThreads + kThreads / 32;  // so that tiles begin in different banks
  __shared__ Value parts[W][kPadded], totals[W][kThreads];
  if (n.rows == 1) return;
  const auto slot = [](int thread) { return thread + thread / 32; };
#pragma unroll
  for (int w = 0; w < W; ++w) parts[w][slot(int(threadIdx.x))] = value[w];
  __syncthreads();
  const int columns = n.tiles * n.across;
  for (int i = int(threadIdx.x); i < W * columns; i += kThreads) {
    const int w = i / columns, column = i - w * columns, tile = column / n.across;
    const int first = column + tile * n.across * (n.rows - 1);
    totals[w][column] = total(n.rows, [&](int row) { return parts[w][slot(first + row * n.across)]; });
  }
  __syncthreads();
#pragma unroll
  for (int w = 0; w < W; ++w) value[w] = totals[w][min(seat.tile, n.tiles - 1) * n.across + seat.column];
}

// The largest of some numbers, and the sum of their exponentials, less that. Without numbers, or with −∞ alone, they
// are −∞ and 0.
struct Exponentials {
  float largest, sum;

  template <typename Values>
  __device__ static Exponentials total(int rows, const Values& at) {
    Exponentials all = {-INFINITY, 0};
#pragma unroll 4
    for (int row = 0; row < rows; ++row) all.largest = fmaxf(all.largest, at(row).largest);
#pragma unroll 4
    for (int row = 0; row < rows; ++row) {
      const Exponentials part = at(row);
      if (part.sum != 0) all.sum += part.sum * expf(part.largest - all.largest);
    }
    return all;
  }
};

// W elements of up to four bytes together, in one register.
template <typename T, int W>
struct HeldWord {
  uint32_t bits = 0;

  __device__ void read(const T* from) { bits = *reinterpret_cast<const Word<int(W * sizeof(T))>*>(from); }
  __device__ Pack<T, W> pack() const { return reinterpret_cast<const Pack<T, W>&>(bits); }
  // Keeps the compiler from holding elements that it has taken out before in registers of their own.
  __device__ void forget_elements() { asm volatile("" : "+r"(bits)); }
};

template <bool kLogarithm, int W, typename T>
__global__ void __launch_bounds__(kThreads, 4) softmax_columns_kernel(AxisVectors v, Neighbours n, const T* x, T* y) {
  const Seat<W> seat(v, n);
  HeldWord<T, W> read[Neighbours::kHeld];
  float held[Neighbours::kHeld][W];
  Exponentials own[W], all[W];
#pragma unroll
  for (int w = 0; w < W; ++w) own[w] = {-INFINITY, 0};
  wait_for_dependencies();
  seat.for_each_held(n, [&](int i, int64_t at) { read[i].read(x + at); });
  const auto see = [&](int w, float value) { own[w].largest = fmaxf(own[w].largest, value); };
  seat.for_each_held(n, [&](int i, int64_t) {
    const Pack<T, W> pack = read[i].pack();
#pragma unroll
    for (int w = 0; w < W; ++w) see(w, held[i][w] = widen(pack.element[w]));
  });
  seat.for_each_other(n, [&](int64_t at) {
    const Pack<T, W> pack = load<W>(x + at);
#pragma unroll
    for (int w = 0; w < W; ++w) see(w, widen(pack.element[w]));
  });
  const auto add = [&](int w, float value) {
    const float exponential = expf(value - (own[w].largest == -INFINITY ? 0 : own[w].largest));
    own[w].sum += exponential;
    return exponential;
  };
  seat.for_each_held(n, [&](int i, int64_t) {
#pragma unroll
    for (int w = 0; w < W; ++w) {
      const float exponential = add(w, held[i][w]);
      if (!kLogarithm) held[i][w] = exponential;
    }
  });
  seat.for_each_other(n, [&](int64_t at) {
    const Pack<T, W> pack = load<W>(x + at);
#pragma unroll
    for (int w = 0; w < W; ++w) add(w, widen(pack.element[w]));
  });
  float factor[W];  // of exponentials that are held; the logarithm of the sum
#pragma unroll
  for (int w = 0; w < W; ++w) all[w] = own[w];
  combine_rows<W>(n, seat, all, [](int rows, const auto& at) { return Exponentials::total(rows, at); });
#pragma unroll
  for (int w = 0; w < W; ++w) {
    factor[w] = kLogarithm ? logf(all[w].sum) : expf(own[w].largest - all[w].largest) / all[w].sum;
  }
  seat.for_each_held(n, [&](int i, int64_t at) {
    Pack<T, W> pack;
#pragma unroll
    for (int w = 0; w < W; ++w) {
      pack.element[w] = narrow<T>(kLogarithm ? held[i][w] - all[w].largest - factor[w] : held[i][w] * factor[w]);
    }
    store(y + at, pack);
  });
  seat.for_each_other(n, [&](int64_t at) {
    Pack<T, W> pack = load<W>(x + at);
#pragma unroll
    for (int w = 0; w < W; ++w) {
      const float shifted = widen(pack.element[w]) - all[w].largest;
      pack.element[w] = narrow<T>(kLogarithm ? shifted - factor[w] : expf(shifted) / all[w].sum);
    }
    store(y + at, pack);
  });
}

template <bool kLogarithm, int W, typename T>
__global__ void __launch_bounds__(kThreads, 4)
    softmax_grad_columns_kernel(AxisVectors v, Neighbours n, const T* dy, const T* y, T* dx) {
  const Seat<W> seat(v, n);
  HeldWord<T, W> above[Neighbours::kHeld], value[Neighbours::kHeld];
  float dot[W] = {};
  wait_for_dependencies();
  seat.for_each_held(n, [&](int i, int64_t at) {
    above[i].read(dy + at);
    value[i].read(y + at);
  });
  const auto add = [&](const Pack<T, W>& a, const Pack<T, W>& b) {
#pragma unroll
    for (int w = 0; w < W; ++w) {
      dot[w] += kLogarithm ? widen(a.element[w]) : widen(a.element[w]) * share_of(widen(b.element[w]));
    }
  };
  seat.for_each_held(n, [&](int i, int64_t) { add(above[i].pack(), value[i].pack()); });
  seat.for_each_other(n, [&](int64_t at) { add(load<W>(dy + at), load<W>(y + at)); });
  combine_rows<W>(n, seat, dot, [](int rows, const auto& at) {
    float sum = 0;
#pragma unroll 4
    for (int row = 0; row < rows; ++row) sum += at(row);
    return sum;
  });
  const auto write = [&](int64_t at, const Pack<T, W>& a, const Pack<T, W>& b) {
    Pack<T, W> pack;
#pragma unroll
    for (int w = 0; w < W; ++w) {
      pack.element[w] = narrow<T>(softmax_gradient<kLogarithm>(widen(a.element[w]), widen(b.element[w]), dot[w]));
    }
    store(dx + at, pack);
  };
  seat.for_each_held(n, [&](int i, int64_t at) {
    above[i].forget_elements();
    value[i].forget_elements();
    write(at, above[i].pack(), value[i].pack());
  });
  seat.for_each_other(n, [&](int64_t at) { write(at, load<W>(dy + at), load<W>(y + at)); });
}

// launch(integral constant of the group's threads, blocks)
template <typename Launch>
void with_group(const AxisVectors& v, int multiprocessors, const Launch& launch) {
  if (v.count == 0 || v.length == 0) return;
  if (v.length > 1024 && v.count < int64_t(multiprocessors) * 16) {
    launch(std::integral_constant<int, kThreads>(), unsigned(v.count));
  } else {
    launch(std::integral_constant<int, 32>(), blocks_for(v.count * 32, multiprocessors));
  }
  check_launch("softmax");
}

// launch(context, vectors, an element, group, blocks): one for the operator, one for its gradient. `columns`: the same
// with neighbours and the elements of a word in place of group and blocks. There are `inputs` inputs.
template <typename Launch, typename Columns>
KernelFactory softmax_factory(size_t inputs, const Launch& launch, const Columns& columns) {
  return [=](const KernelRequest& request) {
    const AxisVectors v(request.inputs[0], int_attribute(request.node, "axis"));
    const int multiprocessors = multiprocessors_of(request);
    return with_type(request, request.inputs[0].dtype, [=](auto element) {
      constexpr int kWide = 4 / sizeof(element);
      const Neighbours single(v, 1), wide(v, v.step % kWide == 0 ? kWide : 1);
      // Few neighbours of long vectors would leave most of a GPU idle.
      const bool side_by_side = v.step > 1 && (wide.count >= multiprocessors / 2 || v.length <= 1024);
      return make_kernel([=](const KernelContext& c) {
        if (!side_by_side) {
          return with_group(v, multiprocessors,
                            [&](auto group, unsigned blocks) { launch(c, v, element, group, blocks); });
        }
        if (wide.count == 0) return;
        const auto whole = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 4 == 0; };
        if (v.step % kWide == 0 && std::all_of(c.inputs, c.inputs + inputs, whole) && whole(c.outputs[0])) {
          columns(c, v, element, wide, std::integral_constant<int, kWide>());
        } else {
          columns(c, v, element, single, std::integral_constant<int, 1>());
        }
        check_launch("softmax");
      });
    });
  };
}

template <bool kLogarithm>
void set_softmax(OpRegistry& registry, const std::string& name) {
  registry.find(name)->cuda = softmax_factory(
      1,
      [](const KernelContext& c, const AxisVectors& v, auto element, auto group, unsigned blocks) {
        using T = decltype(element);
        softmax_kernel<kLogarithm, decltype(group)::value>
            <<<blocks, kThreads, 0, stream_of(c)>>>(v, input<T>(c, 0), output<T>(c, 0));
      },
      [](const KernelContext& c, const AxisVectors& v, auto element, const Neighbours& n, auto width) {
        using T = decltype(element);
        launch_dependent(softmax_columns_kernel<kLogarithm, decltype(width)::value, T>, unsigned(n.blocks()), kThreads,
                         0, stream_of(c), v, n, input<T>(c, 0), output<T>(c, 0));
      });
  registry.find("arbalest." + name + "Grad")->cuda = softmax_factory(
      2,
      [](const KernelContext& c, const AxisVectors& v, auto element, auto group, unsigned blocks) {
        using T = decltype(element);
        softmax_grad_kernel<kLogarithm, decltype(group)::value><<<blocks, kThreads, 0, stream_of(c)>>>(
            v, input<T>(c, GradByOutput::dY), input<T>(c, GradByOutput::Y), output<T>(c, 0));
      },
      [](const KernelContext& c, const AxisVectors& v, auto element, const Neighbours& n, auto width) {
        using T = decltype(element);
        launch_dependent(softmax_grad_columns_kernel<kLogarithm, decltype(width)::value, T>, unsigned(n.blocks()),
                         kThreads, 0, stream_of(c), v, n, input<T>(c, GradByOutput::dY), input<T>(c, GradByOutput::Y),
                         output<T>(c, 0));
      });
}

}  // namespace

void register_math_softmax_cuda(OpRegistry& registry) {
  set_softmax<false>(registry, "Softmax");
  set_softmax<true>(registry, "LogSoftmax");
}

}  // namespace arbalest
