// SPDX-License-Identifier: Apache-2.0
#pragma once
// Kinds of what an idle lane waited for, and their words.

#include <cstddef>
#include <cstdint>
#include <string>

#include "executor/trace/trace_file.h"

namespace arbalest {

// The reason why a lane is idle, in categories that do not require knowledge of the plan: see in_words().
enum class IdleCause : uint8_t {
  Nothing,     // before the lane's first task and after its last
  Input,       // the batch was not read yet
  Copy,        // the batch was read, and not yet on the device
  Averaging,   // replicas were being averaged, on a device or over all
  Results,     // tallies or outputs of earlier batches were not out of the way
  Validation,  // validation had not taken or given what was needed
  Compute,     // work of another compute lane, or of this one
  Turns,       // another lane of the same CPU device had its thread
  Pace,        // the host may run no further ahead
  Noticing,    // what it waited for had ended, and the host did not know yet
  Thread,      // a host task waited for a thread
  Reading,     // the same, while all threads read batches
  Issuing,     // the host was putting it into its device queue
  Starting,    // it was in its queue and first there
};
inline constexpr size_t kIdleCauses = size_t(IdleCause::Starting) + 1;

// "the next batch was not read yet": ends a sentence that begins with "idle, because".
std::string in_words(IdleCause cause, const TracedRun& run);

// The operation by which learners agree: "averaging" for models or, with S-SGD, "summing gradients".
std::string agreeing_in_words(const TracedRun& run);

}  // namespace arbalest
