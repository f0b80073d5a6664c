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
constexpr int kMostBoxes = 140, kFewBoxes = 8, kMostAxes = int(Strided::kMaxRank);
template <typename Word, int kCount>
struct Boxes {
  struct Box {
    const Word* from;
    Word* to;
    int64_t count, from_stride[kMostAxes], to_stride[kMostAxes];
    int64_t extent[kMostAxes];
    int rank;
  } box[kCount];
};

// Divisions are of 32 bits if the box has fewer than 2³¹ words.
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
      const int64_t rest = small ? int64_t(uint32_t(index) / uint32_t(extent)) : index / extent;
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
  int64_t word = 16;
  while (word > bytes && !(wide && box.fits(word / bytes))) word /= 2;
  return word;
}

// Copies those boxes whose words these are, as many at a time as one launch takes. `early`: launches may be.
template <typename Word, int kCount>
void copy_boxes(const KernelContext& c, const std::vector<BoxCopy>& boxes, int64_t bytes, int multiprocessors,
                bool early) {
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
    if (box.count == 0 || !c.outputs[box.output] || word_of(c, box, bytes) != int64_t(sizeof(Word))) continue;
    const int64_t width = int64_t(sizeof(Word)) / bytes;
    const BoxCopy words = width == 1 ? box : box.in_words(width);
    const Word* from = input<Word>(c, box.input) + words.from;
    Word* to = output<Word>(c, box.output) + words.to;
    auto& own = some.box[count++];
    own.from = from, own.to = to, own.count = words.count, own.rank = words.walk.rank;
    for (int axis = 0; axis < own.rank; ++axis) {
      own.extent[axis] = words.walk.extent[axis];
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

// Copies the boxes as rows if all words of one are narrow and none lies otherwise. Returns whether it has.
bool copy_as_rows(const KernelContext& c, const Copying& copying, int64_t bytes, int64_t elements) {
  constexpr int64_t kNarrow = 4, kFew = 1 << 16;  // bytes of a word; elements, whose copy no launch is too slow for
  if (elements < kFew || bytes > kNarrow || !aligned(c.outputs[0])) return false;
  int64_t word = 16;
  for (const BoxCopy& box : copying.boxes) {
    if (box.count > 0) word = std::min(word, word_of(c, box, bytes));
  }
  if (word > kNarrow) return false;
  std::vector<BoxCopy> boxes = copying.boxes;
  const int64_t width = word / bytes;
  if (elements % width != 0) return false;  // the last ones would be left out
  for (BoxCopy& box : boxes) {
    if (width > 1 && box.count > 0) box = box.in_words(width);
  }
  auto copied = as_rows(boxes, elements / width, word);
  if (!copied) return false;
  copied->fills = copying.fills;
  for (int64_t i = 0; i < width; ++i) copied->fill |= uint32_t(copying.fill << (8 * bytes * i));
  const auto copy = [&](auto of) {
    using Word = decltype(of);
    int part = 0;
    for (const BoxCopy& box : boxes) {
      if (box.count > 0) copied->part[part++].from = input<Word>(c, box.input) + box.from;
    }
    copy_rows<Word>(c, *copied);
  };
  word == 1 ? copy(uint8_t()) : word == 2 ? copy(uint16_t()) : copy(uint32_t());
  return true;
}

std::unique_ptr<Kernel> copy_cuda(const KernelRequest& request, CopyRule rule) {
  const int64_t bytes = int64_t(size_of(request.inputs[0].dtype)), elements = request.outputs[0].elements();
  const int multiprocessors = cuda_context(request).multiprocessors;
  return make_kernel([=, copying = rule(request)](const KernelContext& c) {
    if (copy_as_rows(c, copying, bytes, elements)) return;
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

}  // namespace

void register_shape_copy_cuda(OpRegistry& registry) {
  for (const CopyOperator& op : kCopyOperators) {
    registry.find(op.name)->cuda = [rule = op.rule](const KernelRequest& request) { return copy_cuda(request, rule); };
  }
}

}  // namespace arbalest
