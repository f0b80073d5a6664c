// SPDX-License-Identifier: Apache-2.0
#include "ops/conv/conv_detour.h"

#include "ops/conv/conv_fold.h"
#include "ops/conv/conv_solution.h"
#include "ops/conv/grouped/conv_groups.h"
#include "ops/cuda/cuda_math.cuh"
#include "ops/nn/window.cuh"

namespace arbalest {

using namespace cuda;

namespace {

using Kind = ConvolutionProblem::Kind;

// Images (N,…,C) of `from` pixels into images of `to` pixels, which begin at pixel `first` of theirs; zeros outside.
struct PaddingPlacement {
  int from[3], to[3], first[3];
};

template <int W, typename T>
__global__ void __launch_bounds__(kThreads)
    place_images_kernel(PaddingPlacement p, int64_t count, int channels, const T* from, T* to) {
  for (int64_t i = thread_index(); i < count / W; i += thread_count()) {
    const PixelPlace place(i, p.to, channels / W);
    int64_t pixel = place.image;
    bool inside = true;
#pragma unroll
    for (int axis = 0; axis < 3; ++axis) {
      const int at = place.at[axis] + p.first[axis];
      inside = inside && at >= 0 && at < p.from[axis];
      pixel = pixel * p.from[axis] + at;
    }
    Pack<T, W> pack = {};
    if (inside) pack = load<W>(from + pixel * channels + place.pack * W);
    store(to + i * W, pack);
  }
}

// `from` and `to`: shapes (N,C,…) with one element type; `first`: where `to` begins in `from`, in pixels.
template <typename T>
void place_images(cudaStream_t stream, int multiprocessors, const Shape& from_shape, const Shape& to_shape,
                  const std::vector<int64_t>& first, const void* from, void* to) {
  PaddingPlacement placement = {};
  const Pixels from_pixels = pixels_of(from_shape), to_pixels = pixels_of(to_shape);
  for (size_t axis = 0; axis < 3; ++axis) {
    placement.from[axis] = int(from_pixels[axis]);
    placement.to[axis] = int(to_pixels[axis]);
    if (axis + first.size() >= 3) placement.first[axis] = int(first[axis + first.size() - 3]);
  }
  constexpr int W = 16 / sizeof(T);
  const int64_t count = element_count(to_shape);
  const int channels = int(to_shape[1]);
  const T* source = static_cast<const T*>(from);
  T* target = static_cast<T*>(to);
  if (channels % W == 0) {
    place_images_kernel<W>
        <<<blocks_for(count / W, multiprocessors), kThreads, 0, stream>>>(placement, count, channels, source, target);
  } else {
    place_images_kernel<1>
        <<<blocks_for(count, multiprocessors), kThreads, 0, stream>>>(placement, count, channels, source, target);
  }
  check_launch("conv padding");
}

}  // namespace

int64_t Detour::a_bytes() const {
  return a ? aligned_bytes(problem.kind == Kind::GradInput ? problem.y : problem.x, problem.type) : 0;
}
int64_t Detour::b_bytes() const {
  return b ? aligned_bytes(problem.w, problem.type) : 0;
}
int64_t Detour::result_bytes() const {
  return back ? aligned_bytes(problem.output_shape(), problem.output_type) : 0;
}

std::vector<Detour> ways_to_fold(const ConvolutionProblem& problem, const DeviceModel& device) {
  std::vector<Detour> ways;
  const int64_t channels = problem.x[1], bytes = element_count(problem.x) * int64_t(size_of(problem.type));
  const auto add = [&, processors = device.multiprocessors](int by, int64_t wide) {
    Detour way{.problem = problem};
    Folding folding;
    if (!fold(way.problem, by, wide, folding)) return;
    const DataType type = problem.type, given = problem.output_type;
    way.a = [=](cudaStream_t stream, const void* from, void* to) {
      fold_image(stream, processors, folding, type, from, to);
    };
    if (problem.kind == Kind::GradWeight) {
      way.back = [=](cudaStream_t stream, DataType made, const void* from, void* to) {
        unfold_filter(stream, processors, folding, made, from, given, to);
      };
    } else {
      way.b = [=](cudaStream_t stream, const void* from, void* to) {
        fold_filter(stream, processors, folding, type, from, to);
      };
    }
    way.microseconds = device.pass_microseconds(bytes + way.a_bytes()) + device.pass_microseconds(0);
    way.name = (by > 1 ? ", folded by " + std::to_string(by) : "") + ", " + std::to_string(wide) + " channels";
    ways.push_back(std::move(way));
  };
  constexpr int64_t kThinChannels = 16;  // that the kernels of conv_thin.h begin with
  constexpr int64_t kMost = 1024;        // channels: patches of 16 × 16 have 768
  if (channels < 4) add(1, 4);
  add(1, 8);
  add(1, kThinChannels);
  const int64_t stride = problem.stride[0], folded = (stride * stride * channels + 7) / 8 * 8;
  if (stride > 1 && folded <= kMost) add(int(stride), folded);
  return ways;
}

std::vector<Detour> ways_of_fewer_groups(const ConvolutionProblem& problem, const DeviceModel& device) {
  const int processors = device.multiprocessors;
  std::vector<Detour> ways;
  for (const int by : ways_to_join(problem)) {
    Detour way{.problem = problem};
    const JoinedGroups joined = join_groups(way.problem, by);
    const DataType type = problem.type, given = problem.output_type;
    if (problem.kind == Kind::GradWeight) {
      way.back = [=](cudaStream_t stream, DataType made, const void* from, void* to) {
        part_filter(stream, processors, joined, made, from, given, to);
      };
    } else {
      way.b = [=](cudaStream_t stream, const void* from, void* to) {
        join_filter(stream, processors, joined, type, from, to);
      };
    }
    const int64_t bytes = aligned_bytes(way.problem.w, DataType::Float32);
    way.problem.workspace_limit = std::max<int64_t>(0, problem.workspace_limit - bytes);
    way.microseconds = device.pass_microseconds(bytes);
    way.name = ", " + std::to_string(by) + " groups as one";
    ways.push_back(std::move(way));
  }
  return ways;
}

Detour padded_image(const ConvolutionProblem& problem, const DeviceModel& device) {
  Detour way{.problem = problem};
  ConvolutionProblem& padded = way.problem;
  std::vector<int64_t> before;  // the image, in pixels of it
  for (size_t axis = 0; axis < problem.pad_begin.size(); ++axis) {
    before.push_back(-problem.pad_begin[axis]);
    padded.x[2 + axis] += problem.pad_begin[axis] + problem.pad_end[axis];
    padded.pad_begin[axis] = padded.pad_end[axis] = 0;
  }
  const auto place = [type = problem.type, processors = device.multiprocessors](
                         cudaStream_t stream, const Shape& from_shape, const Shape& to_shape,
                         const std::vector<int64_t>& first, const void* from, void* to) {
    const auto run = type == DataType::Float32 ? place_images<float> : place_images<__nv_bfloat16>;
    run(stream, processors, from_shape, to_shape, first, from, to);
  };
  const Shape inner = problem.x, outer = padded.x;
  if (problem.kind == Kind::GradInput) {
    way.back = [=, first = problem.pad_begin](cudaStream_t stream, DataType, const void* from, void* to) {
      place(stream, outer, inner, first, from, to);
    };
  } else {
    way.a = [=](cudaStream_t stream, const void* from, void* to) { place(stream, inner, outer, before, from, to); };
  }
  padded.workspace_limit = std::max<int64_t>(0, problem.workspace_limit - way.workspace_bytes());
  const int64_t elements = element_count(inner) + element_count(outer);
  way.microseconds = device.pass_microseconds(elements * int64_t(size_of(problem.type)));
  return way;
}

}  // namespace arbalest
