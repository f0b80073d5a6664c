// SPDX-License-Identifier: Apache-2.0

// CUDA side of LayerNormalization, RMSNormalization, arbalest.Normalize and their gradients: which of the kernels in
// layer_norm.cuh run.

#include "ops/cuda/partial_sums.cuh"
#include "ops/norm/layer_norm.cuh"

namespace arbalest {

using namespace cuda;

namespace {

// Lanes that hold a row, and packs of each.
template <int G, int P>
struct Held {
  static constexpr int kGroup = G, kPacks = P;
};

// Launches with the Held that fits a row of packs of W best; false: none holds it.
template <int W, typename Launch>
bool with_held(const NormRows& rows, const Launch& launch) {
  if (rows.length % W != 0) return false;
  const int64_t packs = rows.length / W;
  const auto tried = [&](auto held) {
    if (packs > held.kGroup * held.kPacks) return false;
    launch(held);
    return true;
  };
  return tried(Held<4, 1>()) || tried(Held<4, 2>()) || tried(Held<4, 3>()) || tried(Held<4, 4>()) ||
         tried(Held<8, 3>()) || tried(Held<32, 1>()) || tried(Held<16, 3>()) || tried(Held<32, 2>()) ||
         tried(Held<32, 3>()) || tried(Held<32, 4>());
}

// launch(threads of a group, elements of a pack, blocks)
template <typename T, typename Launch>
void with_group(const NormRows& rows, int multiprocessors, bool packed, const Launch& launch) {
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

// y = (x − mean) / deviation of long rows; with dy its gradient. `sums`: of all shares.
template <typename T>
void launch_shares(const KernelContext& c, const NormRows& rows, const RowShares& shares, const T* dy, const T* x,
                   ShareSums* sums, T* y) {
  constexpr int W = 16 / sizeof(T);
  const dim3 grid(unsigned(shares.count), unsigned(std::min<int64_t>(rows.rows, 65535)));
  launch_dependent(share_sums_kernel<W, T>, grid, kThreads, 0, stream_of(c), rows, shares, dy, x, sums);
  check_launch("sums of shares of rows");
  launch_dependent(normalize_share_kernel<W, T>, grid, kThreads, 0, stream_of(c), rows, shares, dy, x, sums, y);
  check_launch("layer_norm of shares of rows");
}

int64_t bytes_of(const NormRows& rows, const RowShares& shares) {
  return shares.count > 1 ? rows.rows * shares.count * int64_t(sizeof(ShareSums)) : 0;
}

std::unique_ptr<Kernel> normalize(const KernelRequest& request) {
  using In = LayerNormInput;
  using Out = LayerNormOutput;
  const NormRows rows(request.node, request.inputs[In::X]);
  const int multiprocessors = multiprocessors_of(request);
  const bool has_scale = request.has_input(In::Scale), has_bias = request.has_input(In::Bias);
  const bool has_mean = request.has_output(Out::Mean), has_inv_std = request.has_output(Out::InvStd);
  return with_type(request, request.inputs[In::X].dtype, [=](auto element) {
    using T = decltype(element);
    const RowShares shares(rows, has_scale || has_mean || has_inv_std ? 0 : multiprocessors, 16 / sizeof(T));
    const auto run = [=](const KernelContext& c) {
      if (rows.empty()) return;
      const T* x = input<T>(c, In::X);
      T* y = output<T>(c, Out::Y);
      const float *scale = has_scale ? input<float>(c, In::Scale) : nullptr,
                  *bias = has_bias ? input<float>(c, In::Bias) : nullptr;
      float *mean = has_mean ? output<float>(c, Out::Mean) : nullptr,
            *inv_std = has_inv_std ? output<float>(c, Out::InvStd) : nullptr;
      const bool packed = aligned(x) && aligned(y) && aligned(scale) && aligned(bias);
      if (shares.count > 1 && packed) {
        return launch_shares<T>(c, rows, shares, nullptr, x, static_cast<ShareSums*>(c.workspace), y);
      }
      constexpr int kWide = 16 / sizeof(T);
      const auto held = [&](auto by) {
        launch_dependent(normalize_held_kernel<by.kGroup, by.kPacks, kWide, T>,
                         blocks_for(rows.rows * by.kGroup, multiprocessors), kThreads, 0, stream_of(c), rows, x, scale,
                         bias, y, mean, inv_std);
        check_launch("layer_norm");
      };
      if (packed && with_held<kWide>(rows, held)) return;
      with_group<T>(rows, multiprocessors, packed, [&](auto group, auto width, unsigned blocks) {
        launch_dependent(normalize_kernel<decltype(group)::value, decltype(width)::value, T>, blocks, kThreads, 0,
                         stream_of(c), rows, x, scale, bias, y, mean, inv_std);
      });
      check_launch("layer_norm");
    };
    return make_kernel(run, bytes_of(rows, shares));
  });
}

struct Sum {
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return narrow<T>(widen(a) + widen(b));
  }
};

std::unique_ptr<Kernel> normalize_gradient(const KernelRequest& request) {
  using In = NormalizeGradInput;
  using Out = NormalizeGradOutput;
  const NormRows rows(request.node, request.inputs[In::X]);
  const int multiprocessors = multiprocessors_of(request);
  const bool has_scale = request.has_input(In::Scale), wants_scale = request.has_output(Out::dScale),
             wants_bias = request.has_output(Out::dBias);
  const bool sums = wants_scale || wants_bias, has_more = request.has_input(In::Summand);
  return with_type(request, request.inputs[In::X].dtype, [=](auto element) {
    using T = decltype(element);
    constexpr int kWide = 16 / sizeof(T);
    const RowShares shares(rows, has_scale || sums ? 0 : multiprocessors, kWide);
    const int64_t bytes = rows.rows * rows.length * int64_t(sizeof(T));
    const Columns wide = reduction_columns(rows.rows, rows.length, kWide, bytes, multiprocessors);
    const Columns narrow = reduction_columns(rows.rows, rows.length, 1, bytes, multiprocessors);
    const int64_t statistics_bytes = (rows.rows * int64_t(sizeof(float2)) + 255) / 256 * 256;
    // A block's sums are worth several rows of each of its warps.
    const auto held_blocks = [=](int resident) {
      return std::min(int(blocks_for(rows.rows * 32, multiprocessors)), multiprocessors * (sums ? resident : 16));
    };
    const int64_t chunks = std::max({wide.chunks, narrow.chunks, held_blocks(kHeldBlocks<1>)});
    const int64_t partial_bytes = 2 * chunks * rows.length * int64_t(sizeof(float));
    const auto run = [=](const KernelContext& c) {
      if (rows.length == 0) return;
      const T *dy = input<T>(c, In::dY), *x = input<T>(c, In::X);
      T* dx = output<T>(c, Out::dX);
      const float* scale = has_scale ? input<float>(c, In::Scale) : nullptr;
      const T* more = has_more ? input<T>(c, In::Summand) : nullptr;
      auto* statistics = sums ? static_cast<float2*>(c.workspace) : nullptr;
      auto* partial = sums ? reinterpret_cast<float*>(static_cast<char*>(c.workspace) + statistics_bytes) : nullptr;
      const auto totals = [&](int chunks) {
        column_totals(stream_of(c), rows.length, chunks, partial, 1.0f,
                      {wants_scale ? output<float>(c, Out::dScale) : nullptr,
                       wants_bias ? output<float>(c, Out::dBias) : nullptr},
                      2);
      };
      const bool packed = aligned(dy) && aligned(x) && aligned(dx) && aligned(scale) && aligned(more);
      const auto add_more = [&] {
        if (!has_more) return;
        launch_elementwise("layer_norm gradient: summand", stream_of(c), multiprocessors, rows.rows * rows.length,
                           Sum(), dx, static_cast<const T*>(dx), more);
      };
      if (shares.count > 1 && packed) {
        launch_shares<T>(c, rows, shares, dy, x, static_cast<ShareSums*>(c.workspace), dx);
        return add_more();
      }
      const auto held = [&](auto by) {
        const int blocks = held_blocks(kHeldBlocks<by.kPacks>);
        // The rows that are fetched take more than the sums that follow them.
        const size_t shared = 3 * by.kPacks * kHeldThreads * sizeof(Pack<T, kWide>);
        launch_dependent(gradient_held_kernel<by.kGroup, by.kPacks, kWide, T>, unsigned(blocks), kHeldThreads, shared,
                         stream_of(c), rows, dy, x, scale, more, dx, partial);
        check_launch("layer_norm gradient");
        if (sums) totals(blocks);
      };
      if (packed && with_held<kWide>(rows, held)) return;
      if (rows.rows > 0) {
        with_group<T>(rows, multiprocessors, packed, [&](auto group, auto width, unsigned blocks) {
          launch_dependent(normalize_gradient_kernel<decltype(group)::value, decltype(width)::value, T>, blocks,
                           kThreads, 0, stream_of(c), rows, dy, x, scale, dx, statistics);
        });
        check_launch("layer_norm gradient");
      }
      add_more();
      if (!sums) return;
      const bool packs = packed && rows.length % kWide == 0;
      const Columns& columns = packs ? wide : narrow;
      if (packs) {
        launch_dependent(parameter_sums_kernel<kWide, T>, columns.grid(), kThreads, 0, stream_of(c), columns, dy, x,
                         statistics, partial);
      } else {
        launch_dependent(parameter_sums_kernel<1, T>, columns.grid(), kThreads, 0, stream_of(c), columns, dy, x,
                         statistics, partial);
      }
      check_launch("layer_norm gradient: partial sums");
      totals(columns.chunks);
    };
    return make_kernel(run, sums ? statistics_bytes + partial_bytes : bytes_of(rows, shares));
  });
}

}  // namespace

void register_norm_layer_norm_cuda(OpRegistry& registry) {
  for (const char* name :
       {"LayerNormalization", "RMSNormalization", "arbalest.Normalize", "arbalest.NormalizeSamples"}) {
    registry.find(name)->cuda = normalize;
  }
  for (const char* name : {"arbalest.NormalizeGrad", "arbalest.NormalizeSamplesGrad"}) {
    registry.find(name)->cuda = normalize_gradient;
  }
}

}  // namespace arbalest
