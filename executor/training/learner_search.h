// SPDX-License-Identifier: Apache-2.0
#pragma once
// --learners auto in a run: the tuner, and the events of its decisions.

#include <memory>
#include <optional>
#include <string>

#include "executor/session/learner_tuner.h"
#include "executor/session/monitor.h"
#include "executor/session/session.h"

namespace arbalest {

class LearnerSearch {
 public:
  // Keeps the references.
  LearnerSearch(const SessionOptions& options, const Prepared& prepared, const Monitor& monitor, RunObserver& events);

  int32_t learners() const { return tuner_.learners(); }  // per device
  bool done() const { return tuner_.done(); }
  LearnerTuner::State state() const { return tuner_.state(); }
  void restore(const LearnerTuner::State& state) { tuner_.restore(state); }

  // Takes a report of a segment, so many seconds after training began. Returns true if another number of learners is
  // wanted, so that the segment is to end. Several processes decide alike by the same seconds.
  bool observe(const RunPosition& at, double seconds, const InputReport& input);
  // The number of learners that was asked for is not possible.
  void cannot(const std::string& why, const RunPosition& at) { tell(tuner_.cannot(why), at); }

 private:
  void tell(const LearnerTuner::Decision& decision, const RunPosition& at);

  const SessionOptions& options_;
  const Prepared& prepared_;
  const Monitor& monitor_;
  RunObserver& events_;
  LearnerTuner tuner_;
  bool waits_for_input_ = false;  // by the last report
};

}  // namespace arbalest
