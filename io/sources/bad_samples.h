// SPDX-License-Identifier: Apache-2.0
#pragma once
// Samples that cannot be read or prepared, of which a number may be passed over (--skip-bad).

#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace arbalest {

class Source;

// The part of a sample's error message after its place (Source::locate()), without the file's name that the place
// already has.
std::string fault_of_sample(const Source& source, int64_t index, const std::string& error);

struct BadSample {
  std::string place, fault;  // as Source::locate() says it, and what is wrong with it
  std::string number;        // "sample 7 of folder:DIR train", for messages alone
};

// Collects bad samples. Any thread may call.
class BadSamples {
 public:
  // Calls `skipped` once for each. `before`: how many of the `most` were passed over earlier.
  BadSamples(int64_t most, std::function<void(const std::string& place, const std::string& fault)> skipped,
             int64_t before = 0)
      : most_(most), before_(before), skipped_(std::move(skipped)) {}

  // Sets the callback for samples from now on. No thread may call add() meanwhile.
  void tell(std::function<void(const std::string& place, const std::string& fault)> skipped) {
    skipped_ = std::move(skipped);
  }

  // If there are more than `most`, throws RunError with the place, the fault and how more may be passed over.
  void add(const BadSample& sample);
  // Several processes count together: each hands what take_found() returns to add_others() of all. take_found() returns
  // the samples added since its last call, without those of other processes.
  std::vector<BadSample> take_found();
  void add_others(const BadSample& sample);

  int64_t most() const { return most_; }

 private:
  bool count(const BadSample& sample);

  const int64_t most_, before_;
  std::function<void(const std::string& place, const std::string& fault)> skipped_;
  std::mutex mutex_;
  std::set<std::string> bad_;     // places
  std::vector<BadSample> found_;  // since take_found()
};

}  // namespace arbalest
