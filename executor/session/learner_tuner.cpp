// SPDX-License-Identifier: Apache-2.0
#include "executor/session/learner_tuner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace arbalest {

void LearnerTuner::measure(int32_t learners) {
  learners_ = learners;
  reports_ = 0;
  windows_.clear();
}

std::optional<LearnerTuner::Decision> LearnerTuner::observe(double seconds, int64_t images) {
  if (done_) return std::nullopt;
  const std::optional<double> throughput = steady_throughput(seconds, images);
  if (!throughput) return std::nullopt;
  return decide(*throughput);
}

std::optional<double> LearnerTuner::steady_throughput(double seconds, int64_t images) {
  if (reports_++ == 0) began_ = seconds;
  const bool warm = reports_ > options_.warmup_reports && seconds - began_ >= options_.warmup_seconds;
  if (!warm) {
    window_began_ = seconds;
    window_images_ = images;
    return std::nullopt;
  }
  if (seconds - window_began_ < options_.window_seconds) return std::nullopt;
  windows_.push_back(double(images - window_images_) / (seconds - window_began_));
  window_began_ = seconds;
  window_images_ = images;
  const size_t count = windows_.size();
  if (count >= 2) {
    const double last = windows_[count - 1], other = windows_[count - 2];
    if (std::abs(last - other) <= options_.steadiness * std::max(last, other)) return (last + other) / 2;
  }
  if (int64_t(count) < options_.most_windows) return std::nullopt;
  std::sort(windows_.begin(), windows_.end());
  return windows_[count / 2];
}

LearnerTuner::Decision LearnerTuner::decide(double throughput) {
  Decision decision{learners_, learners_, throughput, ""};
  const double gain = before_ > 0 ? throughput / best_ - 1 : 0;
  if (before_ > 0 && gain < options_.threshold) {
    decision.next = before_;
    decision.reason = fmt::format("{} learners gain {:.1f} % over {}, less than {:.0f} %: back to {}", learners_,
                                  gain * 100, before_, options_.threshold * 100, before_);
    done_ = true;
    learners_ = before_;
    return decision;
  }
  decision.reason = before_ > 0 ? fmt::format("{} learners gain {:.1f} % over {}", learners_, gain * 100, before_)
                                : fmt::format("measured {} learner{}", learners_, learners_ == 1 ? "" : "s");
  if (learners_ * 2 > options_.most_learners) {
    decision.reason += ", the most that are tried";
    done_ = true;
    return decision;
  }
  decision.next = learners_ * 2;
  decision.reason += fmt::format(": try {}", decision.next);
  before_ = learners_;
  best_ = throughput;
  measure(decision.next);
  return decision;
}

LearnerTuner::Decision LearnerTuner::cannot(const std::string& why) {
  Decision decision{learners_, before_, 0, fmt::format("{} learners: {}: back to {}", learners_, why, before_)};
  done_ = true;
  learners_ = before_;
  return decision;
}

}  // namespace arbalest
