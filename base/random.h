// SPDX-License-Identifier: Apache-2.0
#pragma once
// Counter-based random numbers (Philox-4x32-10; Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
// The same on hosts and GPUs: a draw is a function of its key and counter, so there is no state to save.

#include <cstdint>
#include <string_view>

#include "base/host_device.h"

namespace arbalest {

// Four random words.
struct Random4 {
  uint32_t word[4];
};

// Four words for (key, counter_high, counter_low). By convention key = random_key(seed, name), counter_high = epoch,
// counter_low = position · draws per sample + draw.
ARBALEST_HOST_DEVICE inline Random4 philox(uint64_t key, uint64_t counter_high, uint64_t counter_low) {
  uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
  uint32_t c0 = uint32_t(counter_low), c1 = uint32_t(counter_low >> 32);
  uint32_t c2 = uint32_t(counter_high), c3 = uint32_t(counter_high >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t(0xD2511F53u) * c0, p1 = uint64_t(0xCD9E8D57u) * c2;
    const uint32_t n0 = uint32_t(p1 >> 32) ^ c1 ^ k0, n2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
    c1 = uint32_t(p1);
    c3 = uint32_t(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

// In [0, 1), 24 bits.
ARBALEST_HOST_DEVICE inline float uniform(uint32_t word) {
  return float(word >> 8) * 0x1p-24f;
}

// In 0 … bound − 1, by multiplication (bias under bound / 2³²).
ARBALEST_HOST_DEVICE inline uint32_t below(uint32_t word, uint32_t bound) {
  return uint32_t((uint64_t(word) * bound) >> 32);
}

// FNV-1a, 64 bits: stable across builds and machines.
constexpr uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (const char c : name) hash = (hash ^ uint8_t(c)) * 0x100000001b3ull;
  return hash;
}

// The key of a stream of random numbers.
ARBALEST_HOST_DEVICE inline uint64_t random_key(uint64_t seed, uint64_t name_hash) {
  return (seed * 0x9E3779B97F4A7C15ull) ^ name_hash;
}

}  // namespace arbalest
