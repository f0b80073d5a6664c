// CUDA kernel of arbalest.Augment: uint8 images (N,H,W,C) to normalised crops (N,h,w,C).

#include "graph/random.h"
#include "ops/cuda/cuda_math.cuh"

namespace arbalest {

using namespace cuda;

namespace {

constexpr int kChannels = 16;

struct Augmentation {
  int64_t batch;
  int channels, height, width, crop_height, crop_width, pad;
  bool flip, random;
  uint64_t name_hash;
  float scale[kChannels], shift[kChannels];  // y = x · scale + shift = (x / 255 − mean) / deviation
};

// How one sample's crop lies in its image: output (row, column) is image (row + top, column + left), columns counted
// from the right where it is mirrored.
struct Placement {
  int top, left;
  bool mirrored;

  __device__ Placement(const Augmentation& a, const StepScalars& scalars, int64_t sample) {
    const int rows = 2 * a.pad + a.height - a.crop_height, columns = 2 * a.pad + a.width - a.crop_width;
    top = rows / 2 - a.pad;
    left = columns / 2 - a.pad;
    mirrored = false;
    if (a.random) {
      const Random4 draw =
          philox(random_key(scalars.seed, a.name_hash), scalars.epoch, scalars.position + uint64_t(sample));
      top = int(below(draw.word[0], uint32_t(rows + 1))) - a.pad;
      left = int(below(draw.word[1], uint32_t(columns + 1))) - a.pad;
      mirrored = a.flip && (draw.word[2] & 1) != 0;
    }
  }
};

// Block (chunk of a sample, ·, sample). A thread writes W neighbouring elements, which 16 bytes hold.
template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    augment_kernel(Augmentation a, const StepScalars* scalars, const uint8_t* images, T* out) {
  __shared__ float scale[kChannels], shift[kChannels];
  if (threadIdx.x < kChannels) {
    scale[threadIdx.x] = a.scale[threadIdx.x];
    shift[threadIdx.x] = a.shift[threadIdx.x];
  }
  __syncthreads();
  const int64_t count = int64_t(a.crop_height) * a.crop_width * a.channels;
  for (int64_t sample = blockIdx.z; sample < a.batch; sample += gridDim.z) {
    const Placement place(a, *scalars, sample);
    const uint8_t* image = images + sample * a.height * a.width * a.channels;
    for (int64_t i = thread_index() * W; i < count; i += thread_count() * W) {
      const int64_t pixel = i / a.channels;
      int channel = int(i - pixel * a.channels), row = int(pixel / a.crop_width);
      int column = int(pixel - int64_t(row) * a.crop_width);
      Pack<T, W> result;
#pragma unroll
      for (int w = 0; w < W; ++w) {
        const int from_row = row + place.top;
        const int from_column = (place.mirrored ? a.crop_width - 1 - column : column) + place.left;
        float value = 0;
        if (from_row >= 0 && from_row < a.height && from_column >= 0 && from_column < a.width) {
          const uint8_t x = image[(int64_t(from_row) * a.width + from_column) * a.channels + channel];
          value = float(x) * scale[channel] + shift[channel];
        }
        result.element[w] = narrow<T>(value);
        if (++channel == a.channels) {
          channel = 0;
          if (++column == a.crop_width) {
            column = 0;
            ++row;
          }
        }
      }
      store(out + sample * count + i, result);
    }
  }
}

Augmentation make_augmentation(const KernelRequest& request) {
  const Node& node = request.node;
  const Shape &image = request.inputs[0].shape, &crop = request.outputs[0].shape;
  if (image[1] > kChannels) {
    throw RunError("node '" + node.name + "' (arbalest.Augment): the CUDA kernel takes " + std::to_string(kChannels) +
                   " channels at most; found " + std::to_string(image[1]));
  }
  Augmentation a = {.batch = image[0],
                    .channels = int(image[1]),
                    .height = int(image[2]),
                    .width = int(image[3]),
                    .crop_height = int(crop[2]),
                    .crop_width = int(crop[3]),
                    .pad = int(int_attribute(node, "pad")),
                    .flip = int_attribute(node, "flip") != 0,
                    .random = int_attribute(node, "random") != 0,
                    .name_hash = hash_name(node.name),
                    .scale = {},
                    .shift = {}};
  // One number serves all channels.
  const std::vector<double> means = floats_attribute(node, "mean"), deviations = floats_attribute(node, "std");
  const auto at = [](const std::vector<double>& values, size_t channel, double fallback) {
    return values.empty() ? fallback : values[std::min(channel, values.size() - 1)];
  };
  for (size_t channel = 0; channel < size_t(a.channels); ++channel) {
    const double mean = at(means, channel, 0), deviation = at(deviations, channel, 1);
    a.scale[channel] = float(1 / (255 * deviation));
    a.shift[channel] = float(-mean / deviation);
  }
  return a;
}

}  // namespace

void register_data_augment_cuda(OpRegistry& registry) {
  registry.find("arbalest.Augment")->cuda = [](const KernelRequest& request) {
    const Augmentation a = make_augmentation(request);
    const int64_t count = int64_t(a.crop_height) * a.crop_width * a.channels;
    return with_type(request, request.outputs[0].dtype, [=](auto element) {
      using T = decltype(element);
      constexpr int kWide = 16 / sizeof(T);
      return make_kernel([=](const KernelContext& c) {
        if (a.batch == 0 || count == 0) return;
        T* out = output<T>(c, 0);
        const bool packed = count % kWide == 0 && aligned(out);
        const int64_t items = count / (packed ? kWide : 1);
        const dim3 grid(unsigned(std::clamp<int64_t>((items + kThreads - 1) / kThreads, 1, 1024)), 1,
                        unsigned(std::min<int64_t>(a.batch, 65535)));
        if (packed) {
          augment_kernel<kWide><<<grid, kThreads, 0, stream_of(c)>>>(a, c.scalars, input<uint8_t>(c, 0), out);
        } else {
          augment_kernel<1><<<grid, kThreads, 0, stream_of(c)>>>(a, c.scalars, input<uint8_t>(c, 0), out);
        }
        check_launch("augment");
      });
    });
  };
}

}  // namespace arbalest
