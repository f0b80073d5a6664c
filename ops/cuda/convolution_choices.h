#pragma once
// Which engine was found to be the fastest for which convolution, for a process and those after it.

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

// Contexts of other lanes, and other devices of the same kind, need not measure again, nor do later processes.
class ConvolutionChoices {
 public:
  // Knows from the start what earlier processes have kept in `file`, and adds what it finds; "": only this process
  // knows. A file that cannot be read or written is done without, and what is damaged in it left out.
  explicit ConvolutionChoices(std::filesystem::path file = {});

  // In the folder of kept_choices_folder(), by versions of the libraries.
  static ConvolutionChoices& of_process();

  // Of what find() would begin with; 0: it knows nothing.
  double known_microseconds(const std::string& key);

  // The choice that is known for `key` where `fits` accepts it; else what `choose` finds, which is kept in its place.
  // `choose` runs for one caller at a time of those with the same key, and what others have found meanwhile is looked
  // at first. What they throw is passed on, and nothing is kept.
  ConvolutionChoice find(const std::string& key, const std::function<bool(const ConvolutionChoice&)>& fits,
                         const std::function<ConvolutionChoice()>& choose);

 private:
  void keep(const std::string& key, const ConvolutionChoice& choice) const;

  const std::filesystem::path file_;
  std::mutex mutex_;
  std::condition_variable chosen_;
  std::unordered_set<std::string> choosing_;  // the keys that somebody chooses for
  std::unordered_map<std::string, ConvolutionChoice> known_;
};

// $ARBALEST_CACHE, or else arbalest/ in $XDG_CACHE_HOME or in $HOME/.cache; "": that is set and empty, or there is
// none.
std::filesystem::path kept_choices_folder();

}  // namespace arbalest
