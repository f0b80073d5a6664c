// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rows put together from parts of other rows, where words are narrow: channels that a shuffle deals out, or slices of
// channels that no wide word fits. A block collects rows in shared memory, and writes them in words of 16 bytes.

#include <numeric>
#include <optional>
#include <utility>

#include "ops/cuda/cuda_math.cuh"
#include "ops/cuda/dependent_launch.cuh"
#include "ops/math/divisor.h"
#include "ops/shape/copy.h"

namespace arbalest::cuda {

inline constexpr int kRowBytes = 16 << 10;  // of a block's rows, about
inline constexpr int kRowUnroll = 8;        // words that a thread reads before it uses the first

// The widest words that the box allows, if its tensors are aligned to 16 bytes. `bytes`: the size of an element.
inline int64_t widest_word(const BoxCopy& box, int64_t bytes) {
  int64_t word = 16;
  while (word > bytes && !box.fits(word / bytes)) word /= 2;
  return word;
}

// Words of a row's part, and where they go in the row.
struct RowPart {
  const void* from;
  int64_t from_stride;  // words from a row to the next
  int size, from_step, to, to_step;
  Divisor of_size;
};

struct CopiedRows {
  RowPart part[kMostPieces];
  int parts, length;  // of a row, in words
  int block_rows;     // whose bytes are a multiple of 16
  int64_t rows;
  uint32_t fill;  // the word at places that no part covers
  bool fills;
};

template <typename Word>
__global__ void __launch_bounds__(kThreads) copy_rows_kernel(const __grid_constant__ CopiedRows copied, Word* to) {
  extern __shared__ __align__(16) unsigned char memory[];
  Word* const rows = reinterpret_cast<Word*>(memory);
  const int64_t first = int64_t(blockIdx.x) * copied.block_rows;
  const int count = int(min(int64_t(copied.block_rows), copied.rows - first)), t = int(threadIdx.x);
  if (copied.fills) {
    for (int i = t; i < count * copied.length; i += kThreads) rows[i] = Word(copied.fill);
    __syncthreads();
  }
  wait_for_dependencies();
  for (int p = 0; p < copied.parts; ++p) {
    const RowPart& part = copied.part[p];
    const Word* const from = static_cast<const Word*>(part.from) + first * part.from_stride;
    const int words = count * part.size;
    for (int begin = t; begin < words; begin += kThreads * kRowUnroll) {
      Word read[kRowUnroll];
      int place[kRowUnroll];
#pragma unroll
      for (int u = 0; u < kRowUnroll; ++u) {
        const int i = begin + u * kThreads;
        if (i >= words) break;
        const int row = part.size == 1 ? i : part.of_size.quotient(i), k = i - row * part.size;
        place[u] = row * copied.length + part.to + k * part.to_step;
        read[u] = from[row * part.from_stride + int64_t(k) * part.from_step];
      }
#pragma unroll
      for (int u = 0; u < kRowUnroll; ++u) {
        if (begin + u * kThreads < words) rows[place[u]] = read[u];
      }
    }
  }
  __syncthreads();
  Word* const out = to + first * copied.length;
  constexpr int kWords = int(16 / sizeof(Word));
  const int all = count * copied.length, packs = all / kWords;
  for (int i = t; i < packs; i += kThreads) {
    reinterpret_cast<uint4*>(out)[i] = reinterpret_cast<const uint4*>(rows)[i];
  }
  for (int i = packs * kWords + t; i < all; i += kThreads) out[i] = rows[i];
}

// A box as a part of rows of `length` words, and the number of rows; none where it is not. The pointer is not set.
inline std::optional<std::pair<RowPart, int64_t>> as_part(const BoxCopy& box, int64_t length) {
  const Strided& walk = box.walk;
  int64_t rows = walk.extent[0], size = walk.rank == 1 ? 1 : walk.extent[1], from_stride = walk.stride[1][0];
  int64_t to_step = walk.rank == 1 ? 1 : walk.stride[0][1], from_step = walk.rank == 1 ? 1 : walk.stride[1][1];
  if (walk.rank == 1 && walk.stride[0][0] < length) {  // from one row to the next is as far as from word to word
    to_step = walk.stride[0][0], from_step = walk.stride[1][0];
    if (to_step <= 0 || length % to_step != 0 || rows % (length / to_step) != 0) return std::nullopt;
    size = length / to_step, rows /= size, from_stride = size * from_step;
  } else if (walk.rank > 2 || walk.stride[0][0] != length) {
    return std::nullopt;
  }
  if (box.output != 0 || box.to + (size - 1) * to_step >= length) return std::nullopt;
  return std::pair(RowPart{nullptr, from_stride, int(size), int(from_step), int(box.to), int(to_step), Divisor(size)},
                   rows);
}

// The boxes, none of them empty, as parts of the rows of output 0, of all its `words` of `bytes`; none where they are
// not.
inline std::optional<CopiedRows> as_rows(const std::vector<BoxCopy>& boxes, int64_t words, int64_t bytes) {
  CopiedRows copied{};
  int64_t length = 0;
  for (const BoxCopy& box : boxes) length = std::max(length, box.walk.stride[0][0]);
  if (length == 0 || length > kRowBytes || words % length != 0) return std::nullopt;
  copied.rows = words / length, copied.length = int(length);
  for (const BoxCopy& box : boxes) {
    const auto part = as_part(box, length);
    if (!part || part->second != copied.rows || copied.parts == int(kMostPieces)) return std::nullopt;
    copied.part[copied.parts++] = part->first;
  }
  const int64_t row_bytes = length * bytes, unit = 16 / std::gcd(row_bytes, int64_t{16});
  const int64_t block_rows = std::max<int64_t>(1, kRowBytes / row_bytes / unit) * unit;
  if (block_rows * row_bytes > 2 * kRowBytes) return std::nullopt;
  copied.block_rows = int(block_rows);
  return copied;
}

// A copy by rows as it is known before pointers are: words of `word` bytes, and where in which inputs the parts begin.
struct RowCopy {
  CopiedRows rows;
  int64_t word;
  std::vector<std::pair<size_t, int64_t>> begins;  // input and its first element
};

// How GPUs copy the boxes by rows, if all operands are aligned; none if words are wide, or boxes lie otherwise.
// `bytes`: the size of an element; `elements`: those of the output.
inline std::optional<RowCopy> row_copy(const Copying& copying, int64_t bytes, int64_t elements) {
  constexpr int64_t kNarrow = 4, kFew = 1 << 16;  // bytes of a word; elements, whose copy no launch is too slow for
  if (elements < kFew || bytes > kNarrow) return std::nullopt;
  int64_t word = 16;
  for (const BoxCopy& box : copying.boxes) {
    if (box.count > 0) word = std::min(word, widest_word(box, bytes));
  }
  const int64_t width = word / bytes;
  if (word > kNarrow || elements % width != 0) return std::nullopt;  // the last elements would be left out
  std::vector<BoxCopy> boxes;
  std::vector<std::pair<size_t, int64_t>> begins;
  for (const BoxCopy& box : copying.boxes) {
    if (box.count == 0) continue;
    boxes.push_back(width > 1 ? box.in_words(width) : box);
    begins.emplace_back(box.input, box.from);
  }
  auto rows = as_rows(boxes, elements / width, word);
  if (!rows) return std::nullopt;
  rows->fills = copying.fills;
  for (int64_t i = 0; i < width; ++i) rows->fill |= uint32_t(copying.fill << (8 * bytes * i));
  return RowCopy{*rows, word, std::move(begins)};
}

template <typename Word>
void copy_rows(const KernelContext& c, const RowCopy& copy, int64_t bytes) {
  CopiedRows copied = copy.rows;
  for (size_t i = 0; i < copy.begins.size(); ++i) {
    const auto [from, first] = copy.begins[i];
    copied.part[i].from = static_cast<const unsigned char*>(c.inputs[from]) + first * bytes;
  }
  const dim3 grid(unsigned((copied.rows + copied.block_rows - 1) / copied.block_rows));
  const size_t shared = size_t(copied.block_rows) * size_t(copied.length) * sizeof(Word);
  launch_dependent(copy_rows_kernel<Word>, grid, kThreads, shared, stream_of(c), copied, output<Word>(c, 0));
  check_launch("copies of rows");
}

}  // namespace arbalest::cuda
