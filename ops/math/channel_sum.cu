// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of arbalest.ChannelSum: (N,C) or (N,C,H,W), channels-last, to (C); and of arbalest.ReluGradSums, which
// reads dY and Y once for both of its results.

#include "ops/math/column_sum.cuh"
#include "ops/names.h"
#include "ops/relu.h"

namespace arbalest {

using namespace cuda;

namespace {

// partials: (chunks, channels) of what is written to dx.
template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    relu_grad_sums_kernel(Columns columns, const T* dy, const T* y, T* dx, float* partials) {
  wait_for_dependencies();
  const Place<W> place(columns);
  float sums[1][W] = {};
  for_rows(
      columns, place,
      [&](int64_t at, const Pack<T, W>& gradient, const Pack<T, W>& value) {
        Pack<T, W> passed;
#pragma unroll
        for (int w = 0; w < W; ++w) {
          passed.element[w] = widen(value.element[w]) > 0 ? gradient.element[w] : narrow<T>(0.0f);
          sums[0][w] += widen(passed.element[w]);
        }
        store(dx + at, passed);
      },
      dy, y);
  float total[1];
  sum_rows(place, sums, total);
  const int channel = total_column(place);
  if (channel >= 0) partials[int64_t(blockIdx.y) * columns.count + channel] = total[0];
}

// Layout of relu_grad_sums_kernel. Large tensors get a whole number of chunks for each multiprocessor, because every
// row is written as well as read.
Columns relu_grad_columns(int64_t rows, int64_t channels, int width, int64_t bytes, int multiprocessors) {
  if (bytes <= (int64_t{16} << 20)) return reduction_columns(rows, channels, width, bytes, multiprocessors);
  return make_columns(rows, channels, width,
                      {.slice_columns = kSliceColumns, .blocks = multiprocessors * 4, .chunks = multiprocessors * 2});
}

template <int W, typename T>
void relu_grad_sums(const KernelContext& c, const Columns& columns) {
  float *const sums = output<float>(c, ReluGradSumsOutput::Sums), *const first = columns.chunks == 1
                                                                                     ? sums
                                                                                     : static_cast<float*>(c.workspace);
  const bool small = is_small(columns.rows * columns.count * int64_t(sizeof(T)));
  launch_dependent(relu_grad_sums_kernel<W, T>, Launch{columns.grid(), kThreads, 0, stream_of(c), small}, columns,
                   input<T>(c, GradByOutput::dY), input<T>(c, GradByOutput::Y), output<T>(c, ReluGradSumsOutput::dX),
                   first);
  check_launch("gradient of relu, with partial sums");
  if (columns.chunks == 1) return;
  column_totals(stream_of(c), columns.count, columns.chunks, first, 1.0f, {sums, nullptr}, 1);
}

template <typename T>
std::unique_ptr<Kernel> make_relu_grad_sums(int64_t rows, int64_t channels, int multiprocessors) {
  constexpr int W = 16 / sizeof(T);
  const int64_t bytes = rows * channels * int64_t(sizeof(T));
  const Columns wide = relu_grad_columns(rows, channels, W, bytes, multiprocessors);
  const Columns narrow = relu_grad_columns(rows, channels, 1, bytes, multiprocessors);
  const int64_t workspace = std::max(wide.chunks, narrow.chunks) * channels * int64_t(sizeof(float));
  return make_kernel(
      [=](const KernelContext& c) {
        if (channels == 0) return;
        if (channels % W == 0 && aligned(c.inputs[GradByOutput::dY]) && aligned(c.inputs[GradByOutput::Y]) &&
            aligned(c.outputs[ReluGradSumsOutput::dX])) {
          relu_grad_sums<W, T>(c, wide);
        } else {
          relu_grad_sums<1, T>(c, narrow);
        }
      },
      workspace);
}

}  // namespace

void register_math_channel_sum_cuda(OpRegistry& registry) {
  registry.find("arbalest.ChannelSum")->cuda = [](const KernelRequest& request) {
    const TensorType& x = request.inputs[0];
    const int multiprocessors = multiprocessors_of(request);
    const float scale = float(float_attribute(request.node, "scale"));
    const int64_t channels = x.shape[1], rows = channels == 0 ? 0 : x.elements() / channels;
    return with_type(request, x.dtype, [=](auto element) {
      return make_column_sum<decltype(element)>(rows, channels, scale, multiprocessors);
    });
  };
  registry.find("arbalest.ReluGradSums")->cuda = [](const KernelRequest& request) {
    const TensorType& dy = request.inputs[0];
    const int multiprocessors = multiprocessors_of(request);
    const int64_t channels = dy.shape[1], rows = channels == 0 ? 0 : dy.elements() / channels;
    return with_type(request, dy.dtype, [=](auto element) {
      return make_relu_grad_sums<decltype(element)>(rows, channels, multiprocessors);
    });
  };
}

}  // namespace arbalest
