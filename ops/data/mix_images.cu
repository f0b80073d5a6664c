// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of arbalest.MixPixels, images (N,H,W,C), and arbalest.MixLabels, classes (N) to rows (N,K).

#include <new>

#include "ops/cuda/cuda_math.cuh"
#include "ops/data/mixing.h"

namespace arbalest {

using namespace cuda;

namespace {

// Shares the Mix of a sample, drawn by the block's first thread, with all threads of the block.
class SharedMix {
 public:
  __device__ explicit SharedMix(unsigned char* memory) : mix_(reinterpret_cast<Mix*>(memory)) {}
  __device__ const Mix& draw(const Mixing& mixing, const StepScalars& scalars, int64_t sample) {
    __syncthreads();  // all threads have read the previous sample's
    if (threadIdx.x == 0) new (mix_) Mix(mixing, scalars, sample);
    __syncthreads();
    return *mix_;
  }

 private:
  Mix* mix_;
};

// Block (chunk of a sample, ·, sample). A thread writes W neighbouring elements, which 16 bytes hold.
template <int W, typename T>
__global__ void __launch_bounds__(kThreads) mix_pixels_kernel(const __grid_constant__ Mixing mixing, int channels,
                                                              const StepScalars* scalars, const T* images, T* out) {
  __shared__ alignas(16) unsigned char memory[sizeof(Mix)];
  SharedMix shared(memory);
  const int64_t count = int64_t(mixing.height) * mixing.width * channels;
  for (int64_t sample = blockIdx.z; sample < mixing.batch; sample += gridDim.z) {
    const Mix mix = shared.draw(mixing, *scalars, sample);
    const T* own = images + sample * count;
    const T* other = images + mixing.partner(sample) * count;
    const bool blends = !mix.cuts && mix.own<1, cuts = mix.box.height> 0;
    const float share = float(mix.own), rest = 1 - share;
    for (int64_t i = thread_index() * W; i < count; i += thread_count() * W) {
      Pack<T, W> result = load<W>(own + i);
      if (blends) {
        const Pack<T, W> beside = load<W>(other + i);
#pragma unroll
        for (int w = 0; w < W; ++w) {
          result.element[w] = narrow<T>(share * widen(result.element[w]) + rest * widen(beside.element[w]));
        }
      } else if (cuts) {
        const Pack<T, W> beside = load<W>(other + i);
        const int64_t pixel = i / channels;
        int channel = int(i - pixel * channels), row = int(pixel / mixing.width);
        int column = int(pixel - int64_t(row) * mixing.width);
#pragma unroll
        for (int w = 0; w < W; ++w) {
          if (mix.box.holds(row, column)) result.element[w] = beside.element[w];
          if (++channel == channels) {
            channel = 0;
            if (++column == mixing.width) {
              column = 0;
              ++row;
            }
          }
        }
      }
      store(out + sample * count + i, result);
    }
  }
}

// A block a sample.
__global__ void __launch_bounds__(kThreads)
    mix_labels_kernel(const __grid_constant__ Mixing mixing, int classes, const StepScalars* scalars,
                      const int32_t* labels, float* rows) {
  __shared__ alignas(16) unsigned char memory[sizeof(Mix)];
  SharedMix shared(memory);
  for (int64_t sample = blockIdx.x; sample < mixing.batch; sample += gridDim.x) {
    const Mix mix = shared.draw(mixing, *scalars, sample);
    const int own = labels[sample], other = mix.own < 1 ? labels[mixing.partner(sample)] : own;
    const bool sound = own >= 0 && own < classes && other >= 0 && other < classes;
    for (int k = threadIdx.x; k < classes; k += kThreads) {
      const float share = (k == own ? float(mix.own) : 0.0f) + (k == other ? float(1 - mix.own) : 0.0f);
      rows[sample * classes + k] = sound ? share : NAN;
    }
  }
}

std::unique_ptr<Kernel> mix_pixels_cuda(const KernelRequest& request) {
  const Shape& shape = request.inputs[0].shape;
  const Mixing mixing(request.node, shape[0], shape[2], shape[3]);
  const int channels = int(shape[1]);
  const int64_t count = shape[1] * shape[2] * shape[3];
  return with_type(request, request.inputs[0].dtype, [=](auto element) {
    using T = decltype(element);
    constexpr int kWide = 16 / sizeof(T);
    return make_kernel([=](const KernelContext& c) {
      if (mixing.batch == 0 || count == 0) return;
      const T* images = input<T>(c, 0);
      T* out = output<T>(c, 0);
      const bool packed = count % kWide == 0 && aligned(images) && aligned(out);
      const int64_t items = count / (packed ? kWide : 1);
      const dim3 grid(unsigned(std::clamp<int64_t>((items + kThreads - 1) / kThreads, 1, 1024)), 1,
                      unsigned(std::min<int64_t>(mixing.batch, 65535)));
      if (packed) {
        mix_pixels_kernel<kWide><<<grid, kThreads, 0, stream_of(c)>>>(mixing, channels, c.scalars, images, out);
      } else {
        mix_pixels_kernel<1><<<grid, kThreads, 0, stream_of(c)>>>(mixing, channels, c.scalars, images, out);
      }
      check_launch("mix pixels");
    });
  });
}

std::unique_ptr<Kernel> mix_labels_cuda(const KernelRequest& request) {
  const Node& node = request.node;
  const Shape& shape = request.outputs[0].shape;
  const Mixing mixing(node, shape[0], int_attribute(node, "height"), int_attribute(node, "width"));
  const int classes = int(shape[1]);
  return make_kernel([=](const KernelContext& c) {
    if (mixing.batch == 0) return;
    const auto blocks = unsigned(std::min<int64_t>(mixing.batch, 65535));
    mix_labels_kernel<<<blocks, kThreads, 0, stream_of(c)>>>(mixing, classes, c.scalars, input<int32_t>(c, 0),
                                                             output<float>(c, 0));
    check_launch("mix labels");
  });
}

}  // namespace

void register_data_mix_images_cuda(OpRegistry& registry) {
  registry.find("arbalest.MixPixels")->cuda = mix_pixels_cuda;
  registry.find("arbalest.MixLabels")->cuda = mix_labels_cuda;
}

}  // namespace arbalest
