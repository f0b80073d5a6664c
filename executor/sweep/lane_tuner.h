// SPDX-License-Identifier: Apache-2.0
#pragma once
// How many trials train at the same time on a GPU: as many as raise the throughput of all together.

#include <cstdint>

namespace arbalest {

class LaneTuner {
 public:
  // From `first` lanes to `most`, each time twice as many.
  LaneTuner(int first, int most) : lanes_(first < most ? first : most), most_(most) {}

  int lanes() const { return lanes_; }
  bool done() const { return done_; }

  // Looks at the images that all trials have been trained with up to now. `all_train`: all lanes() have trained since
  // they were last asked for. Returns whether another number of lanes is asked for.
  bool look(double seconds, int64_t images, bool all_train);

 private:
  int lanes_;
  const int most_;
  bool done_ = false;
  int before_ = 0;          // lanes
  double rate_before_ = 0;  // theirs
  double since_ = -1;       // when the window began; −1: it has not
  int64_t images_ = 0;      // by then
};

}  // namespace arbalest
