// CUDA kernels of LayerNormalization, arbalest.Normalize and their gradients: a warp a row, or a block where rows are
// long and few. A row is read several times, from the nearest caches but for the first.

#include "ops/cuda/columns.cuh"
#include "ops/cuda/group_sum.cuh"

namespace arbalest {

using namespace cuda;

namespace {

struct Rows {
  int64_t rows = 1, length = 1;
  float epsilon;

  Rows(const Node& node, const TensorType& x) : epsilon(float(float_attribute(node, "epsilon"))) {
    const int64_t rank = int64_t(x.shape.size()), axis = int_attribute(node, "axis");
    const int64_t first = axis < 0 ? axis + rank : axis;
    for (int64_t i = 0; i < rank; ++i) (i < first ? rows : length) *= x.shape[size_t(i)];
  }
  bool empty() const { return rows == 0 || length == 0; }
};

// f(row, this thread's place in the group); all threads of a group call it together.
template <int G, typename Function>
__device__ inline void for_each_row(int64_t rows, Function f) {
  for (int64_t row = thread_index() / G; row < rows; row += thread_count() / G) f(row, int(threadIdx.x) % G);
}

// The mean of a row and 1 / √(variance + ε). Sums are of differences from the row's first element, which are small
// where the mean is large.
template <int G, int W, typename T>
__device__ inline float2 statistics_of(const Rows& rows, const T* x, int lane) {
  const float origin = widen(x[0]), length = float(rows.length);
  float sum = 0, squares = 0;
  for (int64_t k = lane; k < rows.length / W; k += G) {
    const Pack<T, W> pack = load<W>(x + k * W);
#pragma unroll
    for (int w = 0; w < W; ++w) sum += widen(pack.element[w]) - origin;
  }
  const float mean = origin + group_sum<G>(sum) / length;
  for (int64_t k = lane; k < rows.length / W; k += G) {
    const Pack<T, W> pack = load<W>(x + k * W);
#pragma unroll
    for (int w = 0; w < W; ++w) {
      const float difference = widen(pack.element[w]) - mean;
      squares += difference * difference;
    }
  }
  return {mean, 1.0f / sqrtf(group_sum<G>(squares) / length + rows.epsilon)};
}

template <int W>
__device__ inline Pack<float, W> parameters(const float* from, int64_t k, float fallback) {
  if (from != nullptr) return load<W>(from + k * W);
  Pack<float, W> pack;
#pragma unroll
  for (int w = 0; w < W; ++w) pack.element[w] = fallback;
  return pack;
}

// scale, bias, mean and inv_std may be null.
template <int G, int W, typename T>
__global__ void __launch_bounds__(kThreads)
    normalize_kernel(Rows rows, const T* x, const float* scale, const float* bias, T* y, float* mean, float* inv_std) {
  for_each_row<G>(rows.rows, [&](int64_t row, int lane) {
    const T* from = x + row * rows.length;
    const float2 s = statistics_of<G, W>(rows, from, lane);
    for (int64_t k = lane; k < rows.length / W; k += G) {
      const Pack<T, W> pack = load<W>(from + k * W);
      const Pack<float, W> factor = parameters<W>(scale, k, 1), addend = parameters<W>(bias, k, 0);
      Pack<T, W> result;
#pragma unroll
      for (int w = 0; w < W; ++w) {
        result.element[w] = narrow<T>((widen(pack.element[w]) - s.x) * s.y * factor.element[w] + addend.element[w]);
      }
      store(y + row * rows.length + k * W, result);
    }
    if (lane == 0 && mean != nullptr) mean[row] = s.x;
    if (lane == 0 && inv_std != nullptr) inv_std[row] = s.y;
  });
}

// statistics: (rows), may be null.
template <int G, int W, typename T>
__global__ void __launch_bounds__(kThreads)
    normalize_gradient_kernel(Rows rows, const T* dy, const T* x, const float* scale, T* dx, float2* statistics) {
  for_each_row<G>(rows.rows, [&](int64_t row, int lane) {
    const T *from = x + row * rows.length, *gradients = dy + row * rows.length;
    const float2 s = statistics_of<G, W>(rows, from, lane);
    float sum = 0, product = 0;
    const auto for_packs = [&](auto f) {
      for (int64_t k = lane; k < rows.length / W; k += G) {
        const Pack<T, W> value = load<W>(from + k * W), gradient = load<W>(gradients + k * W);
        const Pack<float, W> factor = parameters<W>(scale, k, 1);
        float g[W], normal[W];
#pragma unroll
        for (int w = 0; w < W; ++w) {
          g[w] = widen(gradient.element[w]) * factor.element[w];
          normal[w] = (widen(value.element[w]) - s.x) * s.y;
        }
        f(k, g, normal);
      }
    };
    for_packs([&](int64_t, const float(&g)[W], const float(&normal)[W]) {
#pragma unroll
      for (int w = 0; w < W; ++w) sum += g[w], product += g[w] * normal[w];
    });
    sum = group_sum<G>(sum) / float(rows.length);
    product = group_sum<G>(product) / float(rows.length);
    for_packs([&](int64_t k, const float(&g)[W], const float(&normal)[W]) {
      Pack<T, W> result;
#pragma unroll
      for (int w = 0; w < W; ++w) result.element[w] = narrow<T>(s.y * (g[w] - sum - normal[w] * product));
      store(dx + row * rows.length + k * W, result);
    });
    if (lane == 0 && statistics != nullptr) statistics[row] = s;
  });
}

// Sums over a chunk of rows of dY · normalised X and of dY: partial (2, chunks, length).
template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    parameter_sums_kernel(Columns columns, const T* dy, const T* x, const float2* statistics, float* partial) {
  const Place<W> place(columns);
  float sums[2][W] = {};
  for_rows(
      columns, place,
      [&](int64_t at, const Pack<T, W>& gradient, const Pack<T, W>& value) {
        const float2 s =
            statistics[at <= INT32_MAX ? int64_t(uint32_t(at) / uint32_t(columns.channels)) : at / columns.channels];
#pragma unroll
        for (int w = 0; w < W; ++w) {
          const float g = widen(gradient.element[w]);
          sums[0][w] += g * (widen(value.element[w]) - s.x) * s.y;
          sums[1][w] += g;
        }
      },
      dy, x);
  float total[2];
  sum_rows(place, sums, total);
  const int t = int(threadIdx.x), column = int(blockIdx.x) * place.slice_channels + t;
  if (t >= place.slice_channels || column >= columns.channels) return;
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    partial[(int64_t(q) * columns.chunks + blockIdx.y) * columns.channels + column] = total[q];
  }
}

// d_scale and d_bias: (columns), may be null.
template <int Unused = 0>
__global__ void __launch_bounds__(kThreads)
    parameter_totals_kernel(int64_t columns, int chunks, const float* partial, float* d_scale, float* d_bias) {
  for (int64_t i = thread_index(); i < columns; i += thread_count()) {
    float scale = 0, bias = 0;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      scale += partial[chunk * columns + i];
      bias += partial[(int64_t(chunks) + chunk) * columns + i];
    }
    if (d_scale != nullptr) d_scale[i] = scale;
    if (d_bias != nullptr) d_bias[i] = bias;
  }
}

// launch(threads of a group, elements of a pack, blocks)
template <typename T, typename Launch>
void with_group(const Rows& rows, int multiprocessors, bool packed, const Launch& launch) {
  constexpr int kWide = 16 / sizeof(T);
  const auto with_width = [&](auto group, unsigned blocks) {
    if (packed && rows.length % kWide == 0) {
      launch(group, std::integral_constant<int, kWide>(), blocks);
    } else {
      launch(group, std::integral_constant<int, 1>(), blocks);
    }
  };
  if (rows.length > 1024 && rows.rows < int64_t(multiprocessors) * 16) {
    with_width(std::integral_constant<int, kThreads>(), unsigned(rows.rows));
  } else {
    with_width(std::integral_constant<int, 32>(), blocks_for(rows.rows * 32, multiprocessors));
  }
}

std::unique_ptr<Kernel> normalize(const KernelRequest& request) {
  const Rows rows(request.node, request.inputs[0]);
  const int multiprocessors = cuda_context(request).multiprocessors;
  const bool has_scale = request.has_input(1), has_bias = request.has_input(2);
  const bool has_mean = request.has_output(1), has_inv_std = request.has_output(2);
  return with_type(request, request.inputs[0].dtype, [=](auto element) {
    using T = decltype(element);
    return make_kernel([=](const KernelContext& c) {
      if (rows.empty()) return;
      const T* x = input<T>(c, 0);
      T* y = output<T>(c, 0);
      const float *scale = has_scale ? input<float>(c, 1) : nullptr, *bias = has_bias ? input<float>(c, 2) : nullptr;
      float *mean = has_mean ? output<float>(c, 1) : nullptr, *inv_std = has_inv_std ? output<float>(c, 2) : nullptr;
      const bool packed = aligned(x) && aligned(y) && aligned(scale) && aligned(bias);
      with_group<T>(rows, multiprocessors, packed, [&](auto group, auto width, unsigned blocks) {
        normalize_kernel<decltype(group)::value, decltype(width)::value>
            <<<blocks, kThreads, 0, stream_of(c)>>>(rows, x, scale, bias, y, mean, inv_std);
      });
      check_launch("layer_norm");
    });
  });
}

std::unique_ptr<Kernel> normalize_gradient(const KernelRequest& request) {
  const Rows rows(request.node, request.inputs[1]);
  const int multiprocessors = cuda_context(request).multiprocessors;
  const bool has_scale = request.has_input(2), wants_scale = request.has_output(1), wants_bias = request.has_output(2);
  const bool sums = wants_scale || wants_bias;
  return with_type(request, request.inputs[1].dtype, [=](auto element) {
    using T = decltype(element);
    constexpr int kWide = 16 / sizeof(T);
    const int64_t bytes = rows.rows * rows.length * int64_t(sizeof(T));
    const Columns wide = reduction_columns(rows.rows, rows.length, kWide, bytes, multiprocessors);
    const Columns narrow = reduction_columns(rows.rows, rows.length, 1, bytes, multiprocessors);
    const int64_t statistics_bytes = (rows.rows * int64_t(sizeof(float2)) + 255) / 256 * 256;
    const int64_t partial_bytes = 2 * std::max(wide.chunks, narrow.chunks) * rows.length * int64_t(sizeof(float));
    const auto run = [=](const KernelContext& c) {
      if (rows.length == 0) return;
      const T *dy = input<T>(c, 0), *x = input<T>(c, 1);
      T* dx = output<T>(c, 0);
      const float* scale = has_scale ? input<float>(c, 2) : nullptr;
      auto* statistics = sums ? static_cast<float2*>(c.workspace) : nullptr;
      const bool packed = aligned(dy) && aligned(x) && aligned(dx) && aligned(scale);
      if (rows.rows > 0) {
        with_group<T>(rows, multiprocessors, packed, [&](auto group, auto width, unsigned blocks) {
          normalize_gradient_kernel<decltype(group)::value, decltype(width)::value>
              <<<blocks, kThreads, 0, stream_of(c)>>>(rows, dy, x, scale, dx, statistics);
        });
        check_launch("layer_norm gradient");
      }
      if (!sums) return;
      auto* partial = reinterpret_cast<float*>(static_cast<char*>(c.workspace) + statistics_bytes);
      const bool packs = packed && rows.length % kWide == 0;
      const Columns& columns = packs ? wide : narrow;
      if (packs) {
        parameter_sums_kernel<kWide>
            <<<columns.grid(), kThreads, 0, stream_of(c)>>>(columns, dy, x, statistics, partial);
      } else {
        parameter_sums_kernel<1><<<columns.grid(), kThreads, 0, stream_of(c)>>>(columns, dy, x, statistics, partial);
      }
      check_launch("layer_norm gradient: partial sums");
      parameter_totals_kernel<><<<blocks_for(rows.length, multiprocessors), kThreads, 0, stream_of(c)>>>(
          rows.length, columns.chunks, partial, wants_scale ? output<float>(c, 1) : nullptr,
          wants_bias ? output<float>(c, 2) : nullptr);
      check_launch("layer_norm gradient: totals");
    };
    return make_kernel(run, sums ? statistics_bytes + partial_bytes : 0);
  });
}

}  // namespace

void register_norm_layer_norm_cuda(OpRegistry& registry) {
  registry.find("LayerNormalization")->cuda = normalize;
  registry.find("arbalest.Normalize")->cuda = normalize;
  registry.find("arbalest.NormalizeGrad")->cuda = normalize_gradient;
}

}  // namespace arbalest
