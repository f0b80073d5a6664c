// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of arbalest.Augment: uint8 images (N,H,W,C) to normalised crops (N,h,w,C).

#include <new>

#include "ops/cuda/cuda_math.cuh"
#include "ops/data/augment_pixel.h"

namespace arbalest {

using namespace cuda;

namespace {

constexpr int kAugmentedChannels = 16;
constexpr int kRounds = 4;  // of a block, so that drawing for its sample is a small part of its work

// y = x · scale + shift = (x / 255 − mean) / deviation
struct Scales {
  float scale[kAugmentedChannels], shift[kAugmentedChannels];

  explicit Scales(const KernelRequest& request) {
    const int64_t channels = request.inputs[0].shape[1];
    if (channels > kAugmentedChannels) {
      throw RunError("node '" + request.node.name + "' (arbalest.Augment): the CUDA kernel takes " +
                     std::to_string(kAugmentedChannels) + " channels at most; found " + std::to_string(channels));
    }
    const Normalisation normalisation(request);
    for (size_t c = 0; c < kAugmentedChannels; ++c) {
      const bool known = c < size_t(channels);
      scale[c] = known ? float(normalisation.scale[c]) : 0;
      shift[c] = known ? float(normalisation.shift[c]) : 0;
    }
  }
};

// Pixels are only placed. Block (chunk of a sample, ·, sample): its first thread draws for the sample. A thread writes
// W neighbouring elements of a row, which 16 bytes hold.
template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    place_kernel(const __grid_constant__ Augmentation a, const __grid_constant__ Scales scales,
                 const StepScalars* scalars, const uint8_t* images, T* out) {
  __shared__ float scale[kAugmentedChannels], shift[kAugmentedChannels];
  __shared__ alignas(16) unsigned char memory[sizeof(Placement)];
  const Placement& place = *reinterpret_cast<const Placement*>(memory);
  if (threadIdx.x < kAugmentedChannels) {
    scale[threadIdx.x] = scales.scale[threadIdx.x];
    shift[threadIdx.x] = scales.shift[threadIdx.x];
  }
  const unsigned channels = unsigned(a.channels), row_packs = unsigned(a.crop_width) * channels / W;
  const unsigned packs = unsigned(a.crop_height) * row_packs, step = unsigned(thread_count());
  for (int64_t sample = blockIdx.z; sample < a.batch; sample += gridDim.z) {
    __syncthreads();  // all have read the placement of the sample before
    if (threadIdx.x == 0) new (memory) Placement(a, SampleDraws(a, *scalars, sample));
    __syncthreads();
    const uint8_t* image = images + sample * a.height * a.width * a.channels;
    T* to = out + sample * packs * W;
    const int column_step = place.mirrored ? -1 : 1;
    const int pixel_step =
        column_step * a.channels - (a.channels - 1);  // from a pixel's last channel to the next's first
    for (unsigned i = unsigned(thread_index()); i < packs; i += step) {
      const unsigned row = i / row_packs, first = (i - row * row_packs) * W, pixel = first / channels;
      unsigned channel = first - pixel * channels;
      const int from_row = int(place.upside_down ? a.crop_height - 1 - row : row) + place.top;
      int from_column = int(place.mirrored ? a.crop_width - 1 - pixel : pixel) + place.left;
      const bool in_image = from_row >= 0 && from_row < a.height;
      const uint8_t* from = image + (int64_t(from_row) * a.width + from_column) * a.channels + channel;
      Pack<T, W> result;
#pragma unroll
      for (int w = 0; w < W; ++w) {
        float value = 0;
        if (in_image && unsigned(from_column) < unsigned(a.width)) {
          value = float(*from) * scale[channel] + shift[channel];
        }
        result.element[w] = narrow<T>(value);
        const bool last = ++channel == channels;
        channel = last ? 0 : channel;
        from_column += last ? column_step : 0;
        from += last ? pixel_step : 1;
      }
      store(to + int64_t(i) * W, result);
    }
  }
}

// Pixels are blended, recoloured or erased. Block (chunk of a sample, ·, sample): its first thread draws for the
// sample. A thread makes P neighbouring pixels, C channels at a time: all of them if P is more than 1.
template <int C, int P, typename T>
__global__ void __launch_bounds__(kThreads, 3)
    pixel_kernel(const __grid_constant__ Augmentation a, const __grid_constant__ Scales scales,
                 const StepScalars* scalars, const uint8_t* images, T* out) {
  using View = PixelView<float>;
  __shared__ alignas(16) unsigned char memory[sizeof(View)];
  const View& view = *reinterpret_cast<const View*>(memory);
  const int count = a.crop_height * a.crop_width, step = int(thread_count()) * P;
  for (int64_t sample = blockIdx.z; sample < a.batch; sample += gridDim.z) {
    __syncthreads();  // all have read the view of the sample before
    if (threadIdx.x == 0) new (memory) View(a, *scalars, sample);
    __syncthreads();
    const uint8_t* image = images + sample * a.height * a.width * a.channels;
    T* to = out + sample * count * a.channels;
    for (int64_t first = thread_index() * P; first < count; first += step) {
      int row = int(first) / a.crop_width, column = int(first) - row * a.crop_width;
      Pack<T, P == 1 ? 1 : C * P> pack;
#pragma unroll
      for (int p = 0; p < P; ++p) {
        const bool erased = view.erased.holds(row, column);
        for (int channel = 0; channel < a.channels; channel += C) {
          float value[C];
          const float coverage = erased ? 0.0f : view.pixel<C>(image + channel, row, column, value);
#pragma unroll
          for (int c = 0; c < C; ++c) {
            const float scaled = value[c] * scales.scale[channel + c] + scales.shift[channel + c];
            const T result = narrow<T>(erased ? 0.0f : coverage * scaled);
            if constexpr (P > 1) {
              pack.element[p * C + c] = result;
            } else {
              to[first * a.channels + channel + c] = result;
            }
          }
        }
        if (++column == a.crop_width) {
          column = 0;
          ++row;
        }
      }
      if constexpr (P > 1) store(to + first * C, pack);
    }
  }
}

dim3 grid_of(const Augmentation& a, int64_t items) {
  const auto blocks = std::clamp<int64_t>((items + kThreads - 1) / kThreads, 1, 1024);
  return dim3(unsigned(blocks), 1, unsigned(std::min<int64_t>(a.batch, 65535)));
}

template <typename T>
void launch_place(const Augmentation& a, const Scales& scales, const KernelContext& c) {
  constexpr int kWide = 16 / sizeof(T);
  const int64_t row = int64_t(a.crop_width) * a.channels, count = a.crop_height * row;
  const uint8_t* images = input<uint8_t>(c, 0);
  T* out = output<T>(c, 0);
  if (row % kWide == 0 && aligned(out)) {
    const dim3 grid = grid_of(a, (count / kWide + kRounds - 1) / kRounds);
    place_kernel<kWide><<<grid, kThreads, 0, stream_of(c)>>>(a, scales, c.scalars, images, out);
  } else {
    const dim3 grid = grid_of(a, (count + kRounds - 1) / kRounds);
    place_kernel<1><<<grid, kThreads, 0, stream_of(c)>>>(a, scales, c.scalars, images, out);
  }
}

template <int C, typename T>
void launch_pixels(const Augmentation& a, const Scales& scales, const KernelContext& c) {
  constexpr int kPixels = 16 / sizeof(T);  // whose elements are whole packs of 16 bytes, whatever C
  const int64_t count = int64_t(a.crop_height) * a.crop_width;
  const uint8_t* images = input<uint8_t>(c, 0);
  T* out = output<T>(c, 0);
  if (a.channels == C && count % kPixels == 0 && aligned(out)) {
    const dim3 grid = grid_of(a, (count / kPixels + kRounds - 1) / kRounds);
    pixel_kernel<C, kPixels><<<grid, kThreads, 0, stream_of(c)>>>(a, scales, c.scalars, images, out);
  } else {
    const dim3 grid = grid_of(a, (count + kRounds - 1) / kRounds);
    pixel_kernel<C, 1><<<grid, kThreads, 0, stream_of(c)>>>(a, scales, c.scalars, images, out);
  }
}

}  // namespace

void register_data_augment_cuda(OpRegistry& registry) {
  registry.find("arbalest.Augment")->cuda = [](const KernelRequest& request) {
    const Augmentation a(request);
    const Scales scales(request);
    const bool empty = request.outputs[0].elements() == 0;
    return with_type(request, request.outputs[0].dtype, [=](auto element) {
      using T = decltype(element);
      return make_kernel([=](const KernelContext& c) {
        if (empty) return;
        if (a.places_only()) {
          launch_place<T>(a, scales, c);
        } else if (a.channels == 3) {
          launch_pixels<3, T>(a, scales, c);
        } else {
          launch_pixels<1, T>(a, scales, c);
        }
        check_launch("augment");
      });
    });
  };
}

}  // namespace arbalest
