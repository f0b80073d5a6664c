// Convolution by plain loops: forward, gradient of the input, gradient of the filters.

#include "ops/cuda/cuda_math.cuh"
#include "ops/nn/conv_direct.h"

namespace arbalest {

using namespace cuda;

namespace {

struct Extents {
  int64_t images;
  int channels, height, width, filters, out_height, out_width, kernel_height, kernel_width;
  int group_channels, group_filters;
  int stride_height, stride_width, dilation_height, dilation_width, pad_top, pad_left;

  explicit Extents(const ConvolutionProblem& p)
      : images(p.x[0]),
        channels(int(p.x[1])),
        height(int(p.x[2])),
        width(int(p.x[3])),
        filters(int(p.w[0])),
        out_height(int(p.y[2])),
        out_width(int(p.y[3])),
        kernel_height(int(p.w[2])),
        kernel_width(int(p.w[3])),
        group_channels(int(p.w[1])),
        group_filters(int(p.w[0] * p.w[1] / std::max<int64_t>(p.x[1], 1))),
        stride_height(int(p.stride[0])),
        stride_width(int(p.stride[1])),
        dilation_height(int(p.dilation[0])),
        dilation_width(int(p.dilation[1])),
        pad_top(int(p.pad_begin[0])),
        pad_left(int(p.pad_begin[1])) {}
};

// y: (N,P,Q,K), one thread an element.
template <typename T>
__global__ void __launch_bounds__(kThreads) forward_kernel(Extents e, const T* x, const T* w, const float* bias, T* y) {
  const int64_t count = e.images * e.out_height * e.out_width * e.filters;
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    const int filter = int(i % e.filters), q = int(i / e.filters % e.out_width);
    const int p = int(i / e.filters / e.out_width % e.out_height);
    const int64_t image = i / e.filters / e.out_width / e.out_height;
    const int first_channel = filter / e.group_filters * e.group_channels;
    float sum = bias != nullptr ? bias[filter] : 0.0f;
    for (int r = 0; r < e.kernel_height; ++r) {
      const int row = p * e.stride_height - e.pad_top + r * e.dilation_height;
      if (row < 0 || row >= e.height) continue;
      for (int s = 0; s < e.kernel_width; ++s) {
        const int column = q * e.stride_width - e.pad_left + s * e.dilation_width;
        if (column < 0 || column >= e.width) continue;
        const T* from = x + ((image * e.height + row) * e.width + column) * e.channels + first_channel;
        const T* weight = w + ((int64_t(filter) * e.kernel_height + r) * e.kernel_width + s) * e.group_channels;
        for (int c = 0; c < e.group_channels; ++c) sum += widen(from[c]) * widen(weight[c]);
      }
    }
    y[i] = narrow<T>(sum);
  }
}

// dx: (N,H,W,C), one thread an element.
template <typename T>
__global__ void __launch_bounds__(kThreads) grad_input_kernel(Extents e, const T* dy, const T* w, T* dx) {
  const int64_t count = e.images * e.height * e.width * e.channels;
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    const int channel = int(i % e.channels), column = int(i / e.channels % e.width);
    const int row = int(i / e.channels / e.width % e.height);
    const int64_t image = i / e.channels / e.width / e.height;
    const int first_filter = channel / e.group_channels * e.group_filters, within = channel % e.group_channels;
    float sum = 0;
    for (int r = 0; r < e.kernel_height; ++r) {
      const int p = row + e.pad_top - r * e.dilation_height;
      if (p < 0 || p % e.stride_height != 0 || p / e.stride_height >= e.out_height) continue;
      for (int s = 0; s < e.kernel_width; ++s) {
        const int q = column + e.pad_left - s * e.dilation_width;
        if (q < 0 || q % e.stride_width != 0 || q / e.stride_width >= e.out_width) continue;
        const T* from =
            dy + ((image * e.out_height + p / e.stride_height) * e.out_width + q / e.stride_width) * e.filters;
        for (int k = first_filter; k < first_filter + e.group_filters; ++k) {
          const int64_t weight = ((int64_t(k) * e.kernel_height + r) * e.kernel_width + s) * e.group_channels + within;
          sum += widen(from[k]) * widen(w[weight]);
        }
      }
    }
    dx[i] = narrow<T>(sum);
  }
}

// dw: (K,R,S,C/g), one block an element.
template <typename T, typename Out>
__global__ void __launch_bounds__(kThreads) grad_weight_kernel(Extents e, const T* x, const T* dy, Out* dw) {
  const int64_t count = int64_t(e.filters) * e.kernel_height * e.kernel_width * e.group_channels;
  for (int64_t i = blockIdx.x; i < count; i += gridDim.x) {
    const int within = int(i % e.group_channels), s = int(i / e.group_channels % e.kernel_width);
    const int r = int(i / e.group_channels / e.kernel_width % e.kernel_height);
    const int filter = int(i / e.group_channels / e.kernel_width / e.kernel_height);
    const int channel = filter / e.group_filters * e.group_channels + within;
    float sum = 0;
    for (int64_t k = threadIdx.x; k < e.images * e.out_height * e.out_width; k += kThreads) {
      const int q = int(k % e.out_width), p = int(k / e.out_width % e.out_height);
      const int64_t image = k / e.out_width / e.out_height;
      const int row = p * e.stride_height - e.pad_top + r * e.dilation_height;
      const int column = q * e.stride_width - e.pad_left + s * e.dilation_width;
      if (row < 0 || row >= e.height || column < 0 || column >= e.width) continue;
      sum += widen(x[((image * e.height + row) * e.width + column) * e.channels + channel]) *
             widen(dy[k * e.filters + filter]);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) dw[i] = narrow<Out>(sum);
  }
}

template <typename T>
void run(const ConvolutionProblem& problem, int multiprocessors, cudaStream_t stream, const T* a, const T* b,
         const float* bias, void* result) {
  const Extents extents(problem);
  const int64_t count = element_count(problem.output_shape());
  if (count == 0) return;
  switch (problem.kind) {
    case ConvolutionProblem::Kind::Forward:
    case ConvolutionProblem::Kind::ForwardBias:
      forward_kernel<<<blocks_for(count, multiprocessors), kThreads, 0, stream>>>(extents, a, b, bias,
                                                                                  static_cast<T*>(result));
      break;
    case ConvolutionProblem::Kind::GradInput:
      grad_input_kernel<<<blocks_for(count, multiprocessors), kThreads, 0, stream>>>(extents, a, b,
                                                                                     static_cast<T*>(result));
      break;
    case ConvolutionProblem::Kind::GradWeight: {
      const unsigned blocks = unsigned(std::min<int64_t>(count, int64_t(multiprocessors) * 64));
      if (problem.output_type == DataType::Float32) {
        grad_weight_kernel<<<blocks, kThreads, 0, stream>>>(extents, a, b, static_cast<float*>(result));
      } else {
        grad_weight_kernel<<<blocks, kThreads, 0, stream>>>(extents, a, b, static_cast<__nv_bfloat16*>(result));
      }
      break;
    }
  }
  check_launch("direct convolution");
}

}  // namespace

void run_direct_convolution(const ConvolutionProblem& problem, int multiprocessors, cudaStream_t stream, const void* a,
                            const void* b, const float* bias, void* result) {
  if (problem.type == DataType::Float32) {
    run(problem, multiprocessors, stream, static_cast<const float*>(a), static_cast<const float*>(b), bias, result);
  } else {
    run(problem, multiprocessors, stream, static_cast<const __nv_bfloat16*>(a), static_cast<const __nv_bfloat16*>(b),
        bias, result);
  }
}

}  // namespace arbalest
