#pragma once
// Which engine was found to be the fastest for which convolution, for a whole process.

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>

namespace arbalest {

struct ConvolutionChoice {
  int64_t index = -1;  // among the heuristics' proposals; −1: no engine
  std::string engine;
  double microseconds = 0;
  bool operator==(const ConvolutionChoice&) const = default;
};

// Contexts of other lanes, and other devices of the same kind, need not measure again.
class ConvolutionChoices {
 public:
  static ConvolutionChoices& of_process();

  // The choice that is known for `key` where `fits` accepts it; else what `choose` finds, which is kept in its place.
  // `choose` runs for one caller at a time, as concurrent timings would disturb each other, and what others have found
  // meanwhile is looked at first. `fits` may run for several at once. What they throw is passed on, and nothing is
  // kept.
  ConvolutionChoice find(const std::string& key, const std::function<bool(const ConvolutionChoice&)>& fits,
                         const std::function<ConvolutionChoice()>& choose);

 private:
  std::mutex mutex_;  // held while choosing
  std::unordered_map<std::string, ConvolutionChoice> known_;
};

}  // namespace arbalest
