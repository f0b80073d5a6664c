// SPDX-License-Identifier: Apache-2.0

// Products in padded memory, computed on the host as the kernel computes them: the parts, the places in memory and the
// words of rows are those that the device uses.

#include "ops/product/padding.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "ops/product/row_words.h"

using namespace arbalest;
using namespace arbalest::cuda;

namespace padding_test {
namespace {

constexpr int64_t kLimit = 48 << 20;

Problem problem_of(int64_t m, int64_t n, int64_t k, bool trans_a = false, bool trans_b = false,
                   DataType out = DataType::Bfloat16) {
  return {.m = m, .n = n, .k = k, .trans_a = trans_a, .trans_b = trans_b, .in = DataType::Bfloat16, .out = out};
}

using Numbers = std::vector<double>;

// Small whole numbers, whose sums are exact.
Numbers numbers(int64_t count, int seed) {
  Numbers values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = double((i * 7 + size_t(seed) * 5) % 11) - 5;
  return values;
}

// Moves rows as the device's kernel does, a word of the destination after another.
void move_rows(const RowsMove& move, const Numbers& from, int64_t first_from, Numbers& to, int64_t first_to) {
  constexpr int kWidth = 8;
  const int64_t words = most_row_words(move.to_columns, kWidth);
  for (int64_t matrix = 0; matrix < move.batch; ++matrix) {
    for (int64_t row = 0; row < move.to_rows; ++row) {
      const int64_t at = first_to + matrix * move.to.step + row * move.to.pitch;
      for (int64_t w = 0; w < words; ++w) {
        const RowWord word = row_word(at, move.to_columns, w, kWidth);
        for (int64_t column = word.begin; column < word.end; ++column) {
          const bool there = row < move.rows && column < move.columns;
          const int64_t source = first_from + matrix * move.from.step + row * move.from.pitch + column;
          to.at(size_t(at + column)) = there ? from.at(size_t(source)) : 0;
        }
      }
    }
  }
}

// The product as cuBLASLt is asked for it. Operands begin at these elements; y is added to itself if `adds`.
void multiply(const Problem& p, const Numbers& a, int64_t at_a, const Numbers& b, int64_t at_b, Numbers& y,
              int64_t at_y, bool adds) {
  for (int64_t matrix = 0; matrix < p.batch; ++matrix) {
    for (int64_t i = 0; i < p.m; ++i) {
      for (int64_t j = 0; j < p.n; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < p.k; ++k) {
          sum += a.at(size_t(at_a + matrix * p.steps.a + (p.trans_a ? k * p.pitches.a + i : i * p.pitches.a + k))) *
                 b.at(size_t(at_b + matrix * p.steps.b + (p.trans_b ? j * p.pitches.b + k : k * p.pitches.b + j)));
        }
        double& to = y.at(size_t(at_y + matrix * p.steps.y + i * p.pitches.y + j));
        to = adds ? to + sum : sum;
      }
    }
  }
}

Numbers padded_result(const Problem& p, const ProductPadding& padding, const Numbers& a, const Numbers& b,
                      int64_t size) {
  Numbers y(size_t(size), NAN);
  const int64_t elements = padded_memory(p, padding).bytes / 2;  // at least as many as any matrix has
  Numbers own[3] = {Numbers(size_t(elements), NAN), Numbers(size_t(elements), NAN), Numbers(size_t(elements), NAN)};
  for (int64_t part = 0; part < parts_of(p, padding); ++part) {
    const MatrixSteps first = part_of(p, padding, part).first;
    const auto fetch = [&](ProductMatrix matrix, const Numbers& from, int64_t at) {
      if (padding.own[matrix] && (part == 0 || moves_with_part(p, padding, matrix))) {
        move_rows(move_of_part(p, padding, part, matrix), from, at, own[matrix], 0);
      }
    };
    fetch(kOfA, a, first.a);
    fetch(kOfB, b, first.b);
    const Problem inner = problem_of_part(p, padding, part);
    const bool own_y = padding.own[kOfY];
    multiply(inner, padding.own[kOfA] ? own[kOfA] : a, padding.own[kOfA] ? 0 : first.a,
             padding.own[kOfB] ? own[kOfB] : b, padding.own[kOfB] ? 0 : first.b, own_y ? own[kOfY] : y,
             own_y ? 0 : first.y, inner.inputs.summand >= 0);
    const bool complete = padding.axis != ProductAxis::K || part + 1 == parts_of(p, padding);
    if (own_y && complete) move_rows(move_of_part(p, padding, part, kOfY), own[kOfY], 0, y, first.y);
  }
  return y;
}

}  // namespace

TEST_CASE("a product in padded memory is the product, in each way, along each axis and in any number of parts") {
  struct Case {
    int64_t batch, m, n, k;
    bool shares_b;
  };
  int64_t checked = 0, axes[4] = {}, ways[3] = {};
  for (const Case& c : {Case{1, 70, 37, 24, false}, Case{1, 40, 70, 37, false}, Case{1, 37, 64, 131, false},
                        Case{1, 9, 11, 13, false}, Case{20, 5, 7, 9, true}, Case{9, 8, 6, 5, false}}) {
    for (int variant = 0; variant < 8; ++variant) {
      Problem p =
          problem_of(c.m, c.n, c.k, variant & 1, variant & 2, variant & 4 ? DataType::Float32 : DataType::Bfloat16);
      p.batch = c.batch;
      p.steps = {c.m * c.k, c.shares_b ? 0 : c.n * c.k, c.m * c.n};
      const Numbers a = numbers(c.batch * c.m * c.k, 1), b = numbers((c.shares_b ? 1 : c.batch) * c.n * c.k, 2);
      Problem plain = p;
      plain.pitches = {p.trans_a ? p.m : p.k, p.trans_b ? p.k : p.n, p.n};
      Numbers expected(size_t(c.batch * c.m * c.n), NAN);
      multiply(plain, a, 0, b, 0, expected, 0, false);
      DeviceModel fast = device_model("H200");
      fast.bf16_per_second = 1;  // so that any copy is worth its time
      for (int64_t memory = 256; memory < 64 << 10; memory *= 2) {
        for (const ProductPadding& padding : proposed_paddings(fast, p, memory, false)) {
          CAPTURE(variant);
          CAPTURE(memory);
          CAPTURE(c.m);
          CHECK(padded_memory(p, padding).bytes <= memory);
          CHECK(padded_result(p, padding, a, b, int64_t(expected.size())) == expected);
          ++checked;
          if (parts_of(p, padding) > 1) ++axes[size_t(padding.axis)];
          ++ways[size_t(padding.way)];
        }
      }
    }
  }
  CHECK(checked > 100);
  for (const int64_t count : axes) CHECK(count > 0);
  for (const int64_t count : ways) CHECK(count > 0);
}

TEST_CASE("which products are padded, and how") {
  const DeviceModel h200 = device_model("H200");
  const auto proposed = [&](const Problem& p) { return proposed_paddings(h200, p, kLimit, false); };
  const auto by_rows = [&](const Problem& p) {
    for (const ProductPadding& padding : proposed(p)) {
      if (padding.way == PaddingWay::Rows) return padding;
    }
    FAIL("no padding of rows");
    return ProductPadding();
  };
  // GPT-2's head: its logits, and both gradients.
  const ProductPadding logits = by_rows(problem_of(4096, 50257, 768, false, true));
  CHECK(logits.own == std::array{false, false, true});
  CHECK(logits.axis == ProductAxis::N);
  const ProductPadding of_x = by_rows(problem_of(4096, 768, 50257));
  CHECK(of_x.own == std::array{true, false, true});  // the sums along K
  CHECK(of_x.axis == ProductAxis::K);
  const ProductPadding of_w = by_rows(problem_of(50257, 768, 4096, true, false, DataType::Float32));
  CHECK(of_w.own == std::array{true, false, false});
  CHECK(of_w.axis == ProductAxis::M);
  for (const ProductPadding& padding : {logits, of_x, of_w}) CHECK(padding.part % 64 == 0);
  // A head of 1001 classes fits in one part.
  const Problem classes = problem_of(256, 1001, 2048, false, true);
  CHECK(parts_of(classes, by_rows(classes)) == 1);
  // Deterministic runs pad only what is sure to gain.
  CHECK_FALSE(proposed_paddings(h200, problem_of(4096, 50257, 768, false, true), kLimit, true).empty());
  CHECK(proposed_paddings(h200, classes, kLimit, true).empty());

  CHECK(proposed(problem_of(4096, 50304, 768, false, true)).empty());  // rows are aligned
  CHECK(proposed(problem_of(4095, 50304, 768, false, true)).empty());  // an odd number of rows is no fault
  CHECK(proposed(problem_of(256, 10, 500, false, true)).empty());      // too small
  CHECK(proposed(problem_of(40, 37, 24, false, true)).empty());        // too small
  CHECK(proposed(problem_of(1 << 16, 769, 8, false, true)).empty());   // copies cost more than it takes
  CHECK(proposed_paddings(h200, problem_of(4096, 50257, 768), 1 << 10, false).empty());  // no memory
  Problem floats = problem_of(4096, 50257, 768, false, true);
  floats.in = floats.out = DataType::Float32;
  CHECK(proposed(floats).empty());
  DeviceModel old = h200;
  old.architecture = 75;
  CHECK(proposed_paddings(old, classes, kLimit, false).empty());
}

TEST_CASE("padding's time is that of copies and launches") {
  const DeviceModel h200 = device_model("H200");
  const Problem p = problem_of(4096, 1001, 2048, false, true);
  const ProductPadding padding{.way = PaddingWay::Rows, .part = 4096, .own = {false, false, true}};
  CHECK(padding_microseconds(h200, p, padding) == doctest::Approx(2 + 4096.0 * 1001 * 4 / 3.5e6));
}

TEST_CASE("words of a row cover it once, wherever it begins") {
  for (const int width : {4, 8}) {
    for (int64_t at = 0; at < 40; ++at) {
      for (const int64_t columns : {1, 2, 7, 8, 9, 16, 37, 64}) {
        int64_t next = 0;
        for (int64_t w = 0; w < most_row_words(columns, width); ++w) {
          const RowWord word = row_word(at, columns, w, width);
          CHECK((at + word.first) % width == 0);
          if (word.begin >= word.end) continue;
          CHECK(word.begin == next);
          CHECK(word.end <= word.first + width);
          next = word.end;
        }
        CHECK(next == columns);
      }
    }
  }
}

TEST_CASE("a word that lies across two is put together of both") {
  unsigned char bytes[32];
  std::iota(std::begin(bytes), std::end(bytes), static_cast<unsigned char>(1));
  uint32_t pair[8];
  std::memcpy(pair, bytes, sizeof(pair));
  for (int at = 0; at < 16; at += 2) {
    uint32_t word[4];
    take_word(pair, at, word);
    CHECK(std::memcmp(word, bytes + at, sizeof(word)) == 0);
  }
}

}  // namespace padding_test
