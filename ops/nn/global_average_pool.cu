// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of GlobalAveragePool and its gradient, channels-last.

#include "ops/nn/window.h"
#include "ops/reduce/reduce.cuh"

namespace arbalest {

using namespace cuda;

namespace {

// dy: (N,C) → dx: (N,H,W,C). Block (chunk of the image, image).
template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    average_gradient_kernel(int64_t images, int64_t pixels, int channels, const T* dy, T* dx) {
  const int packs = channels / W;
  const float share = 1.0f / float(pixels);
  wait_for_dependencies();
  for (int64_t image = blockIdx.z; image < images; image += gridDim.z) {
    for (int64_t i = thread_index(); i < pixels * packs; i += thread_count()) {
      const int64_t pack = i < INT32_MAX ? int64_t(uint32_t(i) % uint32_t(packs)) : i % packs;
      const Pack<T, W> gradient = load<W>(dy + image * channels + pack * W);
      Pack<T, W> result;
#pragma unroll
      for (int w = 0; w < W; ++w) result.element[w] = narrow<T>(widen(gradient.element[w]) * share);
      store(dx + image * pixels * channels + i * W, result);
    }
  }
}

struct Extents {
  int64_t images, pixels, channels;
  unsigned grid_images;

  explicit Extents(const TensorType& image)
      : images(image.shape[0]),
        pixels(pixel_count(pixels_of(image.shape))),
        channels(image.shape[1]),
        grid_images(unsigned(std::clamp<int64_t>(images, 1, 65535))) {}
  bool empty() const { return images == 0 || pixels == 0 || channels == 0; }
};

std::unique_ptr<Kernel> average(const KernelRequest& request) {
  const SumAxes axes(Strided({request.inputs[0], request.outputs[0]}));
  const int multiprocessors = cuda_context(request).multiprocessors;
  return with_type(request, request.inputs[0].dtype, [&](auto element) {
    using T = decltype(element);
    const ReductionLaunch<reductions::ReduceMean, T> mean(axes, multiprocessors);
    return make_kernel([mean](const KernelContext& c) { mean.run(c, input<T>(c, 0), nullptr, output<T>(c, 0)); },
                       mean.workspace_bytes());
  });
}

std::unique_ptr<Kernel> average_gradient(const KernelRequest& request) {
  const Extents size(request.outputs[0]);
  return with_type(request, request.inputs[0].dtype, [=](auto element) {
    using T = decltype(element);
    constexpr int kWide = 16 / sizeof(T);
    return make_kernel([=](const KernelContext& c) {
      if (size.empty()) return;
      const T* dy = input<T>(c, 0);
      T* dx = output<T>(c, 0);
      const bool packed = size.channels % kWide == 0 && aligned(dy) && aligned(dx);
      const int64_t items = size.pixels * size.channels / (packed ? kWide : 1);
      const dim3 grid(unsigned(std::clamp<int64_t>((items + kThreads - 1) / kThreads, 1, 64)), 1, size.grid_images);
      if (packed) {
        launch_dependent(average_gradient_kernel<kWide, T>, grid, kThreads, 0, stream_of(c), size.images, size.pixels,
                         int(size.channels), dy, dx);
      } else {
        launch_dependent(average_gradient_kernel<1, T>, grid, kThreads, 0, stream_of(c), size.images, size.pixels,
                         int(size.channels), dy, dx);
      }
      check_launch("global_average_pool gradient");
    });
  });
}

}  // namespace

void register_nn_global_average_pool_cuda(OpRegistry& registry) {
  registry.find("GlobalAveragePool")->cuda = average;
  registry.find("arbalest.GlobalAveragePoolGrad")->cuda = average_gradient;
}

}  // namespace arbalest
