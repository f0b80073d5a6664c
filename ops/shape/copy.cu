// SPDX-License-Identifier: Apache-2.0

// CUDA kernels of the operators that put elements elsewhere: a kernel a box, in words of up to 16 bytes.

#include "ops/shape/copy.h"

#include "ops/cuda/cuda_math.cuh"

namespace arbalest {

using namespace cuda;

namespace {

// Divisions are of 32 bits if the box has fewer than 2³¹ words.
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    copy_box_kernel(Strided walk, int64_t count, bool small, const Word* from, Word* to) {
  for (int64_t i = thread_index(); i < count; i += thread_count()) {
    int64_t index = i, target = 0, source = 0;
    for (int axis = walk.rank - 1; axis > 0; --axis) {
      const int64_t extent = walk.extent[axis];
      const int64_t rest = small ? int64_t(uint32_t(index) / uint32_t(extent)) : index / extent;
      const int64_t place = index - rest * extent;
      index = rest;
      target += place * walk.stride[0][axis];
      source += place * walk.stride[1][axis];
    }
    to[target + index * walk.stride[0][0]] = from[source + index * walk.stride[1][0]];
  }
}

template <typename Word>
__global__ void __launch_bounds__(kThreads) fill_kernel(int64_t count, Word value, Word* to) {
  for (int64_t i = thread_index(); i < count; i += thread_count()) to[i] = value;
}

template <typename Word>
void copy_box(const KernelContext& c, const BoxCopy& box, int64_t width, int multiprocessors) {
  const BoxCopy words = width == 1 ? box : box.in_words(width);
  const bool small = words.count < (int64_t{1} << 31);
  copy_box_kernel<<<blocks_for(words.count, multiprocessors), kThreads, 0, stream_of(c)>>>(
      words.walk, words.count, small, input<Word>(c, box.input) + words.from, output<Word>(c, box.output) + words.to);
  check_launch("copy");
}

// Copies the box in the widest words that it and its tensors allow. `bytes`: the size of an element.
void copy_box(const KernelContext& c, const BoxCopy& box, int64_t bytes, int multiprocessors, bool wide) {
  int64_t word = 16;
  while (word > bytes && !(wide && box.fits(word / bytes))) word /= 2;
  const int64_t width = word / bytes;
  switch (word) {
    case 1: return copy_box<uint8_t>(c, box, width, multiprocessors);
    case 2: return copy_box<uint16_t>(c, box, width, multiprocessors);
    case 4: return copy_box<uint32_t>(c, box, width, multiprocessors);
    case 8: return copy_box<uint64_t>(c, box, width, multiprocessors);
    default: return copy_box<uint4>(c, box, width, multiprocessors);
  }
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

std::unique_ptr<Kernel> copy_cuda(const KernelRequest& request, CopyRule rule) {
  const int64_t bytes = int64_t(size_of(request.inputs[0].dtype)), elements = request.outputs[0].elements();
  const int multiprocessors = cuda_context(request).multiprocessors;
  return make_kernel([=, copying = rule(request)](const KernelContext& c) {
    if (copying.fills && elements > 0) fill(c, copying.fill, bytes, elements, multiprocessors);
    for (const BoxCopy& box : copying.boxes) {
      if (box.count == 0 || !c.outputs[box.output]) continue;
      const bool wide = aligned(c.inputs[box.input]) && aligned(c.outputs[box.output]);
      copy_box(c, box, bytes, multiprocessors, wide);
    }
  });
}

}  // namespace

void register_shape_copy_cuda(OpRegistry& registry) {
  for (const CopyOperator& op : kCopyOperators) {
    registry.find(op.name)->cuda = [rule = op.rule](const KernelRequest& request) { return copy_cuda(request, rule); };
  }
}

}  // namespace arbalest
