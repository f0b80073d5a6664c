// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of the operators that put elements elsewhere: many boxes a launch, in words of up to 16 bytes.

#include "ops/shape/copy.h"

#include "ops/cuda/cuda_math.cuh"
#include "ops/cuda/dependent_launch.cuh"
#include "ops/shape/copy_rows.cuh"

namespace arbalest {

using namespace cuda;

namespace {

// Boxes that one launch copies, a row of blocks each: as many as what a kernel takes has room for, 32 KiB since CUDA
// 12.1. Most copies have a few.
constexpr int kMostBoxes = 112, kFewBoxes = 8, kMostAxes = int(Strided::kMaxRank);
template <typename Word, int kCount>
struct Boxes {
  struct Box {
    const Word* from;
    Word* to;
    int64_t count, from_stride[kMostAxes], to_stride[kMostAxes];
    int64_t extent[kMostAxes];
    Divisor of_extent[kMostAxes];
    int rank;
  } box[kCount];
};

// Divisions are by Divisor if the box has fewer than 2³¹ words.
template <typename Word, int kCount>
__global__ void __launch_bounds__(kThreads) copy_boxes_kernel(const __grid_constant__ Boxes<Word, kCount> boxes) {
  const auto& box = boxes.box[blockIdx.y];
  const bool small = box.count < (int64_t{1} << 31);
  wait_for_dependencies();
  for (int64_t i = thread_index(); i < box.count; i += thread_count()) {
    int64_t index = i, target = 0, source = 0;
#pragma unroll
    for (int axis = kMostAxes - 1; axis > 0; --axis) {
      if (axis >= box.rank) continue;
      const int64_t extent = box.extent[axis];
      const int64_t rest = small ? int64_t(box.of_extent[axis].quotient(int(index))) : index / extent;
      const int64_t place = index - rest * extent;
      index = rest;
      target += place * box.to_stride[axis];
      source += place * box.from_stride[axis];
    }
    box.to[target + index * box.to_stride[0]] = box.from[source + index * box.from_stride[0]];
  }
}

template <typename Word>
__global__ void __launch_bounds__(kThreads) fill_kernel(int64_t count, Word value, Word* to) {
  for (int64_t i = thread_index(); i < count; i += thread_count()) to[i] = value;
}

// The widest words that the box and its tensors allow. `bytes`: the size of an element.
int64_t word_of(const KernelContext& c, const BoxCopy& box, int64_t bytes) {
  const bool wide = aligned(c.inputs[box.input]) && aligned(c.outputs[box.output]);
  return wide ? widest_word(box, bytes) : bytes;
}

// Copies those boxes whose words these are, as many at a time as one launch takes. `early`: launches may be.
template <typename Word, int kCount>
void copy_boxes(const KernelContext& c, const std::vector<BoxCopy>& boxes, int64_t bytes, int multiprocessors,
                bool early) {
  const auto has_word = [&](const BoxCopy& box) {
    return box.count > 0 && c.outputs[box.output] && word_of(c, box, bytes) == int64_t(sizeof(Word));
  };
  if (std::none_of(boxes.begin(), boxes.end(), has_word)) return;
  Boxes<Word, kCount> some;
  int count = 0;
  int64_t most = 0;  // words of a box
  const auto launch = [&] {
    // The threads of a row take words until none are left.
    const int64_t enough = count == 0 ? 0 : std::max(1, multiprocessors * 16 / count);
    const dim3 grid(unsigned(std::min<int64_t>(blocks_for(most, multiprocessors), enough)), unsigned(count));
    if (count > 0) launch_dependent(copy_boxes_kernel<Word, kCount>, {grid, kThreads, 0, stream_of(c), early}, some);
    check_launch("copies");
    count = 0, most = 0;
  };
  for (const BoxCopy& box : boxes) {
    if (!has_word(box)) continue;
    const int64_t width = int64_t(sizeof(Word)) / bytes;
    const BoxCopy words = width == 1 ? box : box.in_words(width);
    const Word* from = input<Word>(c, box.input) + words.from;
    Word* to = output<Word>(c, box.output) + words.to;
    auto& own = some.box[count++];
    own.from = from, own.to = to, own.count = words.count, own.rank = words.walk.rank;
    for (int axis = 0; axis < own.rank; ++axis) {
      own.extent[axis] = words.walk.extent[axis];
      own.of_extent[axis] = words.walk.of_extent[axis];
      own.to_stride[axis] = words.walk.stride[0][axis];
      own.from_stride[axis] = words.walk.stride[1][axis];
    }
    most = std::max(most, words.count);
    if (count == kCount) launch();
  }
  launch();
}

void fill(const KernelContext& c, uint64_t value, int64_t bytes, int64_t count, int multiprocessors) {
  if (value == 0) {
    CUDA_CHECK(cudaMemsetAsync(c.outputs[0], 0, size_t(bytes * count), stream_of(c)));
    return;
  }
  const auto launch = [&](auto word) {
    fill_kernel<<<blocks_for(count, multiprocessors), kThreads, 0, stream_of(c)>>>(count, word,
                                                                                   output<decltype(word)>(c, 0));
    check_launch("fill");
  };
  switch (bytes) {
    case 1: return launch(uint8_t(value));
    case 2: return launch(uint16_t(value));
    case 4: return launch(uint32_t(value));
    default: return launch(value);
  }
}

// Whether all that the copy reads and writes is aligned to 16 bytes.
bool all_aligned(const KernelContext& c, const RowCopy& copy) {
  return aligned(c.outputs[0]) && std::all_of(copy.begins.begin(), copy.begins.end(),
                                              [&](const auto& begin) { return aligned(c.inputs[begin.first]); });
}

}  // namespace

std::unique_ptr<Kernel> copy_cuda(const KernelRequest& request, const Copying& copying) {
  const int64_t bytes = int64_t(size_of(request.inputs[0].dtype)), elements = request.outputs[0].elements();
  const int multiprocessors = multiprocessors_of(request);
  const std::optional<RowCopy> by_rows = row_copy(copying, bytes, elements);
  return make_kernel([=](const KernelContext& c) {
    if (by_rows && all_aligned(c, *by_rows)) {
      const auto copy = by_rows->word == 1   ? copy_rows<uint8_t>
                        : by_rows->word == 2 ? copy_rows<uint16_t>
                                             : copy_rows<uint32_t>;
      return copy(c, *by_rows, bytes);
    }
    if (copying.fills && elements > 0) fill(c, copying.fill, bytes, elements, multiprocessors);
    const auto copy = [&](auto word) {  // after a memset no launch is early
      using Word = decltype(word);
      const auto copy_some =
          copying.boxes.size() > kFewBoxes ? copy_boxes<Word, kMostBoxes> : copy_boxes<Word, kFewBoxes>;
      copy_some(c, copying.boxes, bytes, multiprocessors, !copying.fills);
    };
    copy(uint8_t()), copy(uint16_t()), copy(uint32_t()), copy(uint64_t()), copy(uint4());
  });
}

void register_shape_copy_cuda(OpRegistry& registry) {
  for (const CopyOperator& op : kCopyOperators) {
    registry.find(op.name)->cuda = [rule = op.rule](const KernelRequest& request) {
      return copy_cuda(request, rule(request));
    };
  }
}

}  // namespace arbalest
