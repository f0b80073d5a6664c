// SPDX-License-Identifier: Apache-2.0

// Runs from their start to their end, as executor/session/session.h declares them.

#include <chrono>
#include <stop_token>

#include "base/plain_message.h"
#include "executor/run/task_error.h"
#include "executor/session/event_queue.h"
#include "executor/training/training.h"
#include "executor/world/ranks.h"

namespace arbalest {
namespace {

// A run, and what is done with it at its end.
RunFinished train(Graph graph, const SessionOptions& options, RunObserver& observer, std::stop_token stop,
                  const std::function<void(Training&)>& then) {
  const auto began = std::chrono::steady_clock::now();
  EventQueue events(observer);
  std::unique_ptr<Training> training;
  try {
    training = std::make_unique<Training>(std::move(graph), options, events);
    const double setup_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    const RunFinished end = training->run(stop, setup_seconds);
    if (then) then(*training);
    events.drain();
    return end;
  } catch (const std::exception& error) {
    if (options.ranks) options.ranks->fail(plain_message(error));
    const auto* task = dynamic_cast<const TaskError*>(&error);
    events.on(RunFailed{plain_message(error), -1, task ? task->iteration : -1, training ? training->seconds() : 0,
                        training ? training->trace_written() : ""});
    throw;
  }
}

}  // namespace

RunFinished run_training(Graph graph, const SessionOptions& options, RunObserver& observer, std::stop_token stop) {
  return train(std::move(graph), options, observer, std::move(stop), {});
}

StepProfile profile_training(Graph graph, const SessionOptions& options, RunObserver& observer, std::stop_token stop) {
  StepProfile profile;
  train(std::move(graph), options, observer, std::move(stop),
        [&](Training& training) { profile = training.profile(); });
  return profile;
}

}  // namespace arbalest
