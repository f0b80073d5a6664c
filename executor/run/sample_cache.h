#pragma once
// Prepared samples of a split, kept in the host's memory from their first use on (Prefetch's attribute `cache`).

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace arbalest {

class SampleCache {
 public:
  // For so many samples of so many bytes each. Memory is taken as samples come. Throws RunError where the system
  // refuses the addresses.
  SampleCache(int64_t samples, int64_t sample_bytes);
  ~SampleCache();
  SampleCache(const SampleCache&) = delete;
  SampleCache& operator=(const SampleCache&) = delete;

  int64_t bytes() const { return samples_ * sample_bytes_; }

  // All of these from any thread. The sample, or nullptr where it is not there yet.
  const std::byte* find(int64_t index) const;
  // Where the caller is to write the sample, which publish() then makes known; nullptr where another one is writing it,
  // or has.
  std::byte* claim(int64_t index);
  void publish(int64_t index);

 private:
  enum State : uint8_t { Absent, Claimed, Present };

  const int64_t samples_, sample_bytes_;
  const std::unique_ptr<std::atomic<uint8_t>[]> states_;
  std::byte* memory_ = nullptr;
};

// Throws RunError where so many bytes of all caches are more than the machine, or the group of processes that this one
// is limited with, has available.
void check_memory_for_caches(int64_t bytes);

}  // namespace arbalest
