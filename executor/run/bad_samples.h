#pragma once
// Samples that cannot be read or prepared, which a run skips up to a number of them.

#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <string>

namespace arbalest {

// A skipped sample's place in its batch is taken by the next one of the split that can be read. Any thread may call.
class BadSamples {
 public:
  // `skipped` is told of each once.
  BadSamples(int64_t most, std::function<void(const std::string& place, const std::string& fault)> skipped)
      : most_(most), skipped_(std::move(skipped)) {}

  // Who is told from now on. Nobody may be adding meanwhile.
  void tell(std::function<void(const std::string& place, const std::string& fault)> skipped) {
    skipped_ = std::move(skipped);
  }

  // Throws RunError where it is one too many.
  void add(const std::string& place, const std::string& fault);

  int64_t most() const { return most_; }
  bool contains(const std::string& place) const {
    const std::scoped_lock lock(mutex_);
    return bad_.contains(place);
  }

 private:
  const int64_t most_;
  std::function<void(const std::string& place, const std::string& fault)> skipped_;
  mutable std::mutex mutex_;
  std::set<std::string> bad_;  // places
};

}  // namespace arbalest
