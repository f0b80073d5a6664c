// SPDX-License-Identifier: Apache-2.0
#pragma once
// The instructions of ops/cuda/matrix_unit.cuh, on lanes.h. Which lane has which elements: PTX ISA, "Matrix Fragments
// for mma.m16n8k16", https://docs.nvidia.com/cuda/parallel-thread-execution/

#include <cstring>
#include <deque>
#include <stdexcept>
#include <vector>

#include "tests/lanes/lanes.h"

namespace arbalest::cuda {

inline uint32_t shared_address(const void* p) {
  return uint32_t(static_cast<const unsigned char*>(p) - lanes::shared_memory());
}

// A thread's copies in the background end as late as may be: when it waits for their group.
struct Copy {
  void* to;
  const void* from;  // null: zeros
  size_t bytes;
};
inline std::deque<std::vector<Copy>>& copies_of_thread() {  // the last group is open
  static std::vector<std::deque<std::vector<Copy>>> all(lanes::kMostWarps * lanes::kWarp);
  std::deque<std::vector<Copy>>& own = all[lanes::thread_index().x];
  if (own.empty()) own.emplace_back();
  return own;
}
inline void copy_async(void* to, const void* from, bool there) {
  copies_of_thread().back().push_back({to, there ? from : nullptr, 16});
}
inline void copy_word_async(void* to, const void* from, bool there) {
  copies_of_thread().back().push_back({to, there ? from : nullptr, 4});
}
inline void commit_copies() {
  copies_of_thread().emplace_back();
}
template <int Pending>
inline void wait_for_copies() {
  for (std::deque<std::vector<Copy>>& groups = copies_of_thread(); groups.size() > Pending + 1; groups.pop_front()) {
    for (const Copy& copy : groups.front()) {
      const bool inside = shared_address(copy.to) + copy.bytes <= size_t(lanes::shared_bytes());
      if (!inside || uintptr_t(copy.to) % copy.bytes != 0 || uintptr_t(copy.from) % copy.bytes != 0) {
        throw std::logic_error("a copy is misplaced");
      }
      copy.from != nullptr ? std::memcpy(copy.to, copy.from, copy.bytes) : std::memset(copy.to, 0, copy.bytes);
    }
  }
}

inline int lane_index() {
  return int(lanes::thread_index().x) % lanes::kWarp;
}
inline int warp_index() {
  return int(lanes::thread_index().x) / lanes::kWarp;
}
inline float half_of(uint32_t word, int half) {  // a bfloat16 as float
  const uint32_t bits = half != 0 ? word & 0xffff0000u : word << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline void load_each(uint32_t (&r)[4], uint32_t address, bool transposed) {
  static uint32_t addresses[lanes::kMostWarps][lanes::kWarp];
  if (address % 16 != 0 || address + 16 > uint32_t(lanes::shared_bytes())) {
    throw std::logic_error("a row of a matrix is misplaced");
  }
  const int lane = lane_index();
  uint32_t(&rows)[lanes::kWarp] = addresses[warp_index()];
  rows[lane] = address;
  lanes::wait_for_warp();
  for (int matrix = 0; matrix < 4; ++matrix) {
    uint16_t half[2];
    for (int i = 0; i < 2; ++i) {
      const int pair = lane % 4 * 2 + i, row = transposed ? pair : lane / 4, column = transposed ? lane / 4 : pair;
      std::memcpy(&half[i], lanes::shared_memory() + rows[matrix * 8 + row] + column * 2, sizeof half[i]);
    }
    r[matrix] = half[0] | uint32_t{half[1]} << 16;
  }
  lanes::wait_for_warp();
}
inline void load_matrices(uint32_t (&r)[4], uint32_t address) {
  load_each(r, address, false);
}
inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
  load_each(r, address, true);
}

inline uint32_t transpose(uint32_t pair) {
  static uint32_t pairs[lanes::kMostWarps][lanes::kWarp];
  uint32_t(&all)[lanes::kWarp] = pairs[warp_index()];
  const int lane = lane_index();
  all[lane] = pair;
  lanes::wait_for_warp();
  const auto half = [&](int row) { return (all[row * 4 + lane / 8] >> (lane / 4 % 2 * 16)) & 0xffffu; };
  const uint32_t turned = half(lane % 4 * 2) | half(lane % 4 * 2 + 1) << 16;
  lanes::wait_for_warp();
  return turned;
}

inline void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Operands {
    uint32_t a[4], b[2];
  };
  static Operands operands[lanes::kMostWarps][lanes::kWarp];
  const int lane = lane_index();
  Operands(&all)[lanes::kWarp] = operands[warp_index()];
  all[lane] = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
  lanes::wait_for_warp();
  for (int r = 0; r < 4; ++r) {
    const int row = lane / 4 + r / 2 * 8, column = lane % 4 * 2 + r % 2;
    for (int k = 0; k < 16; ++k) {
      const int pair = k % 8 / 2, half = k / 8;
      d[r] += half_of(all[row % 8 * 4 + pair].a[row / 8 + half * 2], k % 2) *
              half_of(all[column * 4 + pair].b[half], k % 2);
    }
  }
  lanes::wait_for_warp();
}

}  // namespace arbalest::cuda
