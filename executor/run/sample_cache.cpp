// SPDX-License-Identifier: Apache-2.0
#include "executor/run/sample_cache.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include "base/checked.h"
#include "base/error.h"

namespace arbalest {
namespace {

// Bytes that /proc/meminfo reports as available; −1: unknown.
int64_t available_memory() {
  std::ifstream info("/proc/meminfo");
  for (std::string word; info >> word;) {
    int64_t kib = 0;
    if (word == "MemAvailable:" && info >> kib) return kib << 10;
  }
  return -1;
}

// Bytes left below the container's memory limit; −1: there is no limit.
int64_t left_of_limit() {
  int64_t most = 0, used = 0;
  std::ifstream limit("/sys/fs/cgroup/memory.max"), current("/sys/fs/cgroup/memory.current");
  return limit >> most && current >> used ? std::max<int64_t>(0, most - used) : -1;
}

}  // namespace

void check_memory_for_caches(int64_t bytes) {
  for (const int64_t available : {available_memory(), left_of_limit()}) {
    if (available < 0 || bytes <= available) continue;
    constexpr double kGib = 1 << 30;
    throw RunError(
        fmt::format("caches of prepared samples take {:.1f} GiB of the host's memory, expected at most the "
                    "{:.1f} GiB that are available",
                    double(bytes) / kGib, double(available) / kGib));
  }
}

SampleCache::SampleCache(int64_t samples, int64_t sample_bytes)
    : samples_(samples), sample_bytes_(sample_bytes), states_(new std::atomic<uint8_t>[size_t(samples)]()) {
  const int64_t wanted = checked_multiply(samples, sample_bytes, "a cache of samples");
  void* memory =
      mmap(nullptr, size_t(wanted), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw RunError(
        fmt::format("a cache of {:.1f} GiB cannot be had: {}", double(wanted) / (1 << 30), std::strerror(errno)));
  }
  memory_ = static_cast<std::byte*>(memory);
}

SampleCache::~SampleCache() {
  munmap(memory_, size_t(bytes()));
}

const std::byte* SampleCache::find(int64_t index) const {
  if (states_[size_t(index)].load(std::memory_order_acquire) != Present) return nullptr;
  return memory_ + index * sample_bytes_;
}

std::byte* SampleCache::claim(int64_t index) {
  uint8_t expected = Absent;
  if (!states_[size_t(index)].compare_exchange_strong(expected, Claimed)) return nullptr;
  return memory_ + index * sample_bytes_;
}

void SampleCache::publish(int64_t index) {
  states_[size_t(index)].store(Present, std::memory_order_release);
}

}  // namespace arbalest
