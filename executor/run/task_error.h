// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"

namespace arbalest {

// The error that ended a run. The scheduler makes one of a task's exception, which says which task failed, where and in
// which instance. If a task throws a TaskError itself, that describes the training as a whole and is passed on
// unchanged.
class TaskError : public RunError {
 public:
  TaskError(const std::string& message, int64_t at) : RunError(message), iteration(at) {}
  int64_t iteration;  // of the run: the task instance's, or how many were complete; −1 if neither is known
};

// A loss that is not finite.
class Diverged : public TaskError {
 public:
  enum class Of : uint8_t { Training, Validation };
  Diverged(const std::string& message, int64_t at, Of where) : TaskError(message, at), of(where) {}
  Of of;
};

}  // namespace arbalest
