// SPDX-License-Identifier: Apache-2.0
#include "io/formats/layout.h"

#include <cstdint>
#include <cstring>

namespace arbalest {

namespace {

// `batch` matrices of (rows, columns) → (columns, rows). memcpy of a constant size is one move, aligned or not.
template <size_t Size>
void transpose(int64_t batch, int64_t rows, int64_t columns, const std::byte* from, std::byte* to) {
  for (int64_t n = 0; n < batch; ++n, from += rows * columns * int64_t(Size))
    for (int64_t column = 0; column < columns; ++column)
      for (int64_t row = 0; row < rows; ++row, to += Size)
        std::memcpy(to, from + (row * columns + column) * int64_t(Size), Size);
}

void transpose(int64_t batch, int64_t rows, int64_t columns, size_t size, const void* from, void* to) {
  const auto* source = static_cast<const std::byte*>(from);
  auto* target = static_cast<std::byte*>(to);
  switch (size) {
    case 1: return transpose<1>(batch, rows, columns, source, target);
    case 2: return transpose<2>(batch, rows, columns, source, target);
    case 4: return transpose<4>(batch, rows, columns, source, target);
    case 8: return transpose<8>(batch, rows, columns, source, target);
  }
  for (int64_t n = 0; n < batch; ++n, source += size_t(rows * columns) * size)
    for (int64_t column = 0; column < columns; ++column)
      for (int64_t row = 0; row < rows; ++row, target += size)
        std::memcpy(target, source + size_t(row * columns + column) * size, size);
}

}  // namespace

void to_memory_order(const TensorType& type, const void* row_major, void* memory) {
  const int64_t elements = type.elements();
  if (elements == 0) return;
  if (type.layout == Layout::RowMajor) {
    std::memcpy(memory, row_major, size_t(type.bytes()));
    return;
  }
  const int64_t batch = type.shape[0], channels = type.shape[1];
  transpose(batch, channels, elements / (batch * channels), size_of(type.dtype), row_major, memory);
}

void to_row_major(const TensorType& type, const void* memory, void* row_major) {
  const int64_t elements = type.elements();
  if (elements == 0) return;
  if (type.layout == Layout::RowMajor) {
    std::memcpy(row_major, memory, size_t(type.bytes()));
    return;
  }
  const int64_t batch = type.shape[0], channels = type.shape[1];
  transpose(batch, elements / (batch * channels), channels, size_of(type.dtype), memory, row_major);
}

}  // namespace arbalest
