// SPDX-License-Identifier: Apache-2.0
#include "executor/session/event_queue.h"

#include <algorithm>
#include <utility>

#include "executor/devices/threads.h"

namespace arbalest {

EventQueue::EventQueue(RunObserver& observer, size_t most_waiting)
    : observer_(observer),
      most_waiting_(std::max<size_t>(1, most_waiting)),
      thread_(start_thread("what the run reports", [this] { serve(); })) {}

EventQueue::~EventQueue() {
  {
    const std::scoped_lock lock(mutex_);
    add_lines(true);
    closed_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void EventQueue::on(const RunEvent& event) {
  const std::scoped_lock lock(mutex_);
  if (const auto* end = std::get_if<EpochEnded>(&event)) {
    held_.lines[end->epoch].end = *end;
    add_lines(false);
  } else if (const auto* validated = std::get_if<Validated>(&event)) {
    held_.lines[validated->epoch].validation = *validated;
    add_lines(false);
  } else {
    // After the run a validation that is still awaited will not come, so nothing is held back any more.
    if (is_last(event)) add_lines(true);
    add(event);
  }
}

// Called with the mutex held, as are the next three.
void EventQueue::add(RunEvent event) {
  ++handed_on_;
  if (std::holds_alternative<RunProgress>(event)) {
    ++waiting_;
    events_.push_back(std::move(event));
    if (waiting_ > most_waiting_) make_room();
  } else {
    events_.push_back(std::move(event));
  }
  changed_.notify_all();
}

// Drops the oldest report; the next one counts it as missed.
void EventQueue::make_room() {
  const auto is_report = [](const RunEvent& event) { return std::holds_alternative<RunProgress>(event); };
  const auto oldest = std::find_if(events_.begin(), events_.end(), is_report);
  const auto next = std::find_if(oldest + 1, events_.end(), is_report);
  std::get<RunProgress>(*next).missed += 1 + std::get<RunProgress>(*oldest).missed;
  events_.erase(oldest);
  --waiting_;
}

// Hands on the lines of complete epochs, in order; with `all` those of all epochs.
void EventQueue::add_lines(bool all) {
  while (!held_.lines.empty()) {
    auto& [epoch, line] = *held_.lines.begin();
    if (line.end) {
      line.ended = true;
      line.awaits_validation = line.end->validates;
      held_.last_epoch = epoch;
      add(*std::exchange(line.end, std::nullopt));
    }
    const bool complete = line.ended && (line.validation || !line.awaits_validation);
    const bool late = line.validation && epoch <= held_.last_epoch;
    if (!complete && !late && !all) return;
    if (line.validation) add(*line.validation);
    held_.lines.erase(held_.lines.begin());
  }
}

void EventQueue::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return closed_ || !events_.empty(); });
    if (events_.empty()) return;
    const RunEvent event = std::move(events_.front());
    events_.pop_front();
    waiting_ -= std::holds_alternative<RunProgress>(event);
    busy_ = true;
    const bool silent = error_ != nullptr;
    lock.unlock();
    std::exception_ptr error;
    try {
      if (!silent) observer_.on(event);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error) error_ = error;
    busy_ = false;
    changed_.notify_all();
  }
}

int64_t EventQueue::handed_on() {
  const std::scoped_lock lock(mutex_);
  return handed_on_;
}

bool EventQueue::wait_for(int64_t handed_on, std::chrono::seconds longest) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, longest,
                           [&] { return handed_on_ - int64_t(events_.size()) - int64_t(busy_) >= handed_on; });
}

HeldBack EventQueue::held_back() {
  const std::scoped_lock lock(mutex_);
  return held_;
}

void EventQueue::hold_back(HeldBack held) {
  const std::scoped_lock lock(mutex_);
  held_ = std::move(held);
}

void EventQueue::drain() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return events_.empty() && !busy_; });
  if (error_) std::rethrow_exception(error_);
}

}  // namespace arbalest
