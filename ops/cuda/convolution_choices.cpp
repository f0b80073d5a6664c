#include "ops/cuda/convolution_choices.h"

#include <optional>

namespace arbalest {

ConvolutionChoices& ConvolutionChoices::of_process() {
  static ConvolutionChoices choices;
  return choices;
}

ConvolutionChoice ConvolutionChoices::find(const std::string& key,
                                           const std::function<bool(const ConvolutionChoice&)>& fits,
                                           const std::function<ConvolutionChoice()>& choose) {
  std::optional<ConvolutionChoice> refused;
  for (;;) {
    ConvolutionChoice choice;
    {
      const std::lock_guard lock(mutex_);
      const auto found = known_.find(key);
      if (found == known_.end() || found->second == refused) return known_[key] = choose();
      choice = found->second;
    }
    if (choice.index < 0 || fits(choice)) return choice;
    refused = choice;
  }
}

}  // namespace arbalest
