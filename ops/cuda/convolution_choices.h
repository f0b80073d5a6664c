// SPDX-License-Identifier: Apache-2.0
#pragma once
// The engines found to be the fastest for convolutions, remembered for this process and later ones.

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace arbalest {

struct ConvolutionChoice {
  int64_t index = -1;  // among the heuristics' proposals; −1: no engine
  std::string engine;
  double microseconds = 0;
  bool operator==(const ConvolutionChoice&) const = default;
};

// Choices by key. Contexts of other lanes, other devices of the same kind and later processes need not measure again.
class ConvolutionChoices {
 public:
  // Starts with the choices that earlier processes kept in `file`, and adds those that it finds. "": choices are for
  // this process only. A file that cannot be read or written is ignored, as are damaged lines.
  explicit ConvolutionChoices(std::filesystem::path file = {});

  // The instance of the process. Its file is in cache_folder(), one for each set of library versions.
  static ConvolutionChoices& of_process();

  // Time in µs of the choice known for `key`, which find() would try first; 0 if none is known.
  double known_microseconds(const std::string& key);

  // How many choices were timed here, rather than known from earlier processes or the only ones. Code of all engines
  // that were timed stays in the device's memory.
  int64_t timed();

  // The choice known for `key` if `fits` accepts it, else the result of `choose`, which replaces it. `choose` runs for
  // one caller at a time per key; callers that waited try its result first. Exceptions of `fits` and `choose` are
  // passed on, and nothing is kept.
  ConvolutionChoice find(const std::string& key, const std::function<bool(const ConvolutionChoice&)>& fits,
                         const std::function<ConvolutionChoice()>& choose);

 private:
  void keep(const std::string& key, const ConvolutionChoice& choice) const;

  const std::filesystem::path file_;
  std::mutex mutex_;
  std::condition_variable chosen_;
  std::unordered_set<std::string> choosing_;  // keys for which `choose` is running
  std::unordered_map<std::string, ConvolutionChoice> known_;
  int64_t timed_ = 0;
};

}  // namespace arbalest
