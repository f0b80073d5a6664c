// SPDX-License-Identifier: Apache-2.0
#pragma once
// Between training and its observer: events wait in a queue that a thread of its own serves, so that a slow observer
// holds up nobody.

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "executor/session/observer.h"

namespace arbalest {

// Events that are held back until the lines of earlier epochs are complete.
struct HeldBack {
  struct Line {  // of an epoch
    std::optional<EpochEnded> end;
    std::optional<Validated> validation;
    bool ended = false, awaits_validation = false;  // its end was handed on, without its validation
  };
  std::map<int64_t, Line> lines;  // by epoch
  int64_t last_epoch = 0;         // the last epoch whose end was handed on
};

// Delivers events to an observer from a thread of its own. Calls return at once and may come from any thread. The
// observer is called in the order of the calls, except for the lines of epochs. The end of an epoch and its validation
// (EpochEnded::validates) come before those of the next epoch, whichever is known first. At most `most_waiting` events
// of RunProgress, the only frequent ones, wait for delivery. Beyond that the oldest is dropped, and RunProgress::missed
// of the next one counts it. All other events are delivered. An observer that throws is not called again.
class EventQueue final : public RunObserver {
 public:
  static constexpr size_t kMostWaiting = 256;

  // Throws RunError if the system refuses a thread.
  explicit EventQueue(RunObserver& observer, size_t most_waiting = kMostWaiting);
  ~EventQueue() override;  // after everything has been delivered

  void on(const RunEvent& event) override;

  // The events that are held back. hold_back() restores them in the queue of a run that goes on.
  HeldBack held_back();
  void hold_back(HeldBack held);

  // handed_on() returns the number of events handed on so far. wait_for() waits until that many have been delivered, at
  // most `longest`, and returns whether they have.
  int64_t handed_on();
  bool wait_for(int64_t handed_on, std::chrono::seconds longest);

  // Waits until everything has been delivered. Throws what the observer threw.
  void drain();

 private:
  void add(RunEvent event);
  void make_room();
  void add_lines(bool all);
  void serve();

  RunObserver& observer_;
  const size_t most_waiting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<RunEvent> events_;
  int64_t handed_on_ = 0;  // in all; of these, those that are in events_ wait
  size_t waiting_ = 0;     // RunProgress among them
  HeldBack held_;
  bool busy_ = false, closed_ = false;
  std::exception_ptr error_;  // the observer's
  std::thread thread_;        // last: it uses the others
};

}  // namespace arbalest
