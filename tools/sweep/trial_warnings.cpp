// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/trial_warnings.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

namespace arbalest {
namespace {

std::atomic<TrialWarnings*> taking = nullptr;  // a handler has no object of its own

}  // namespace

TrialWarnings::TrialWarnings() : before_((taking = this, set_warning_handler(take))) {}

TrialWarnings::~TrialWarnings() {
  tell_gathered(0);
  set_warning_handler(before_);
  taking = nullptr;
}

void TrialWarnings::begin_trials(int64_t trials) {
  const std::scoped_lock lock(mutex_);
  ++calls_;
  trials_ = trials;
}

void TrialWarnings::tell_gathered(int64_t all_trials) {
  const std::scoped_lock lock(mutex_);
  gathers_ = false;
  for (const Gathered& each : std::exchange(gathered_, {})) {
    const bool some = each.trials > 0 && each.trials < all_trials;
    before_(some ? fmt::format("{} ({} of {} trials)", each.message, each.trials, all_trials) : each.message);
  }
}

void TrialWarnings::take(const std::string& message) {
  if (TrialWarnings* warnings = taking) warnings->add(message);
}

void TrialWarnings::add(const std::string& message) {
  const std::scoped_lock lock(mutex_);
  if (known_.insert(message).second) {
    if (!gathers_) return before_(message);
    gathered_.push_back({message, trials_, calls_});
    return;
  }
  const auto found =
      std::find_if(gathered_.begin(), gathered_.end(), [&](const Gathered& each) { return each.message == message; });
  if (found == gathered_.end() || found->from == calls_) return;
  found->from = calls_;
  found->trials += trials_;
}

}  // namespace arbalest
