// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rows that begin anywhere in memory, as the 16-byte words that they lie in.

#include <cstdint>

#include "base/host_device.h"

namespace arbalest {

// A word of a row: the column of the word's first element, which may lie before the row, and the columns [begin, end)
// that are the row's.
struct RowWord {
  int64_t first, begin, end;
};

// Words that a row of so many elements has at most, wherever it begins.
ARBALEST_HOST_DEVICE constexpr int64_t most_row_words(int64_t columns, int width) {
  return (columns + 2 * width - 2) / width;
}

// `at`: elements before the row in memory. `width`: elements of a word. A word past the row has no columns.
ARBALEST_HOST_DEVICE constexpr RowWord row_word(int64_t at, int64_t columns, int64_t word, int width) {
  const int64_t first = word * width - at % width;
  return {first, first < 0 ? 0 : first, first + width < columns ? first + width : columns};
}

// 16 bytes from byte `at` of 32 bytes; `at` is even and less than 16.
ARBALEST_HOST_DEVICE constexpr void take_word(const uint32_t (&pair)[8], int at, uint32_t (&word)[4]) {
  const int skipped = at / 4;
  uint32_t near[5] = {};
  for (int i = 0; i < 5; ++i) {
    near[i] = skipped == 0 ? pair[i] : skipped == 1 ? pair[i + 1] : skipped == 2 ? pair[i + 2] : pair[i + 3];
  }
  for (int i = 0; i < 4; ++i) word[i] = at % 4 == 0 ? near[i] : near[i] >> 16 | near[i + 1] << 16;
}

}  // namespace arbalest
