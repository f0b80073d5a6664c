#pragma once

#include <cstdint>
#include <string>

#include "graph/error.h"

namespace arbalest {

// What ended a run; what() says where, or what about the training as a whole is wrong.
class TaskError : public RunError {
 public:
  TaskError(const std::string& message, int64_t failed_iteration) : RunError(message), iteration(failed_iteration) {}
  int64_t iteration;  // of the base clock; −1 where the task belongs to another
};

}  // namespace arbalest
