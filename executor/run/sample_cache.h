// SPDX-License-Identifier: Apache-2.0
#pragma once
// Prepared samples of a split, kept in the host's memory from their first use on (Prefetch's attribute `cache`).

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace arbalest {

class SampleCache {
 public:
  // For so many samples of so many bytes each. Memory is taken as samples come. Throws RunError if the system
  // refuses the addresses.
  SampleCache(int64_t samples, int64_t sample_bytes);
  ~SampleCache();
  SampleCache(const SampleCache&) = delete;
  SampleCache& operator=(const SampleCache&) = delete;

  int64_t bytes() const { return samples_ * sample_bytes_; }

  // Any thread may call the following functions. find() returns the sample, or nullptr if it is not in the cache yet.
  const std::byte* find(int64_t index) const;
  // Returns the memory into which the caller has to write the sample before publish() makes it visible; nullptr if
  // another caller is writing it or has written it.
  std::byte* claim(int64_t index);
  void publish(int64_t index);

 private:
  enum State : uint8_t { Absent, Claimed, Present };

  const int64_t samples_, sample_bytes_;
  const std::unique_ptr<std::atomic<uint8_t>[]> states_;
  std::byte* memory_ = nullptr;
};

// Throws RunError if all caches together need more bytes than are available on the machine, or within the memory limit
// of the process's control group.
void check_memory_for_caches(int64_t bytes);

}  // namespace arbalest
