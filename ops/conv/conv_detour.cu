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

// A matrix in the upper left corner of another one, or the part of it that fits; zeros elsewhere. W: how many columns
// of either a thread copies.
template <int W, typename From, typename To>
__global__ void __launch_bounds__(kThreads)
    fit_matrix_kernel(uint32_t from_rows, uint32_t from_columns, uint32_t columns, int64_t count, const From* from,
                      To* to) {
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    const int64_t row = i / columns;
    const uint32_t column = uint32_t(i - row * columns);
    Pack<To, W> made = {};
    if (row < from_rows && column < from_columns) {
      const Pack<From, W> pack = load<W>(from + (row * from_columns + column) * W);
#pragma unroll
      for (int w = 0; w < W; ++w) made.element[w] = narrow<To>(widen(pack.element[w]));
    }
    store(to + i * W, made);
  }
}

// The pixels of an image, or the taps of each filter, as rows of channels.
struct ChannelMatrix {
  int64_t rows, columns;
  DataType type;

  ChannelMatrix(const Shape& shape, DataType type)
      : rows(element_count(shape) / shape[1]), columns(shape[1]), type(type) {}
};

void fit_matrix(cudaStream_t stream, int multiprocessors, const ChannelMatrix& given, const void* from,
                const ChannelMatrix& wanted, void* to) {
  const auto fit = [&]<int W>(std::integral_constant<int, W>) {
    const int64_t count = wanted.rows * wanted.columns / W;
    with_stored(given.type, [&](auto source) {
      with_stored(wanted.type, [&](auto target) {
        fit_matrix_kernel<W><<<blocks_for(count, multiprocessors), kThreads, 0, stream>>>(
            uint32_t(given.rows), uint32_t(given.columns / W), uint32_t(wanted.columns / W), count,
            static_cast<const decltype(source)*>(from), static_cast<decltype(target)*>(to));
      });
    });
    check_launch("conv rounding of channels");
  };
  if (given.columns % 2 == 0 && wanted.columns % 2 == 0) return fit(std::integral_constant<int, 2>());
  fit(std::integral_constant<int, 1>());
}

}  // namespace

int64_t Detour::a_bytes() const {
  return a ? aligned_bytes(problem.kind == Kind::GradInput ? problem.y : problem.x, problem.type) : 0;
}
int64_t Detour::b_bytes() const {
  return b ? aligned_bytes(problem.kind == Kind::GradWeight ? problem.y : problem.w, problem.type) : 0;
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

std::vector<Detour> ways_to_round(const ConvolutionProblem& problem, const DeviceModel& device) {
  const auto rounded = [](int64_t channels) { return (channels + 7) / 8 * 8; };
  const bool even = problem.x[1] % 8 == 0 && problem.y[1] % 8 == 0, plain = problem.kind != Kind::ForwardBias;
  const bool fits = element_count(problem.x) / problem.x[1] <= INT32_MAX && problem.x[1] >= 8 && problem.y[1] >= 8;
  if (problem.type != DataType::Bfloat16 || problem.w[1] != problem.x[1] || even || !plain || !fits) return {};
  Detour way{.problem = problem};
  ConvolutionProblem& wide = way.problem;
  wide.x[1] = wide.w[1] = rounded(problem.x[1]);
  wide.y[1] = wide.w[0] = rounded(problem.y[1]);
  const auto changed = [&, processors = device.multiprocessors](const Shape& narrow,
                                                                const Shape& wider) -> Detour::Change {
    if (narrow == wider) return {};
    way.microseconds += device.pass_microseconds(2 * aligned_bytes(narrow, problem.type));
    return [=, given = ChannelMatrix(narrow, problem.type), wanted = ChannelMatrix(wider, problem.type)](
               cudaStream_t stream, const void* from, void* to) {
      fit_matrix(stream, processors, given, from, wanted, to);
    };
  };
  const bool to_input = problem.kind == Kind::GradInput, to_filter = problem.kind == Kind::GradWeight;
  way.a = to_input ? changed(problem.y, wide.y) : changed(problem.x, wide.x);
  way.b = to_filter ? changed(problem.y, wide.y) : changed(problem.w, wide.w);
  const Shape &result = wide.output_shape(), &asked = problem.output_shape();
  if (result != asked) {
    way.microseconds += device.pass_microseconds(2 * aligned_bytes(asked, problem.output_type));
    way.back = [=, wanted = ChannelMatrix(asked, problem.output_type), processors = device.multiprocessors](
                   cudaStream_t stream, DataType made, const void* from, void* to) {
      fit_matrix(stream, processors, ChannelMatrix(result, made), from, wanted, to);
    };
  }
  if (way.workspace_bytes() > problem.workspace_limit) return {};
  way.problem.workspace_limit -= way.workspace_bytes();
  way.name = ", " + std::to_string(wide.x[1]) + " and " + std::to_string(wide.y[1]) + " channels";
  return {std::move(way)};
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
  return way;
}

}  // namespace arbalest
