// SPDX-License-Identifier: Apache-2.0
#include "executor/sweep/lane_tuner.h"

#include <algorithm>

namespace arbalest {

bool LaneTuner::look(double seconds, int64_t images, bool all_train) {
  constexpr double kWindow = 1.0;  // seconds
  constexpr double kGain = 1.05;   // that twice as many have to bring
  if (done()) return false;
  if (!all_train) {
    since_ = -1;
    return false;
  }
  if (since_ < 0) {
    since_ = seconds;
    images_ = images;
    return false;
  }
  if (seconds - since_ < kWindow) return false;
  const double rate = double(images - images_) / (seconds - since_);
  since_ = -1;
  if (before_ > 0 && rate < kGain * rate_before_) {
    lanes_ = before_;
    done_ = true;
    return true;
  }
  done_ = lanes_ == most_;
  if (done_) return false;
  before_ = lanes_;
  rate_before_ = rate;
  lanes_ = std::min(2 * lanes_, most_);
  return true;
}

}  // namespace arbalest
