#pragma once
// The state of one replica in its device's memory: put there before a run, read back after it.

#include <string>

#include "executor/binding.h"
#include "executor/state.h"
#include "io/source.h"

namespace arbalest {

struct StartingState {
  uint64_t seed = 1;
  const TensorFile* file = nullptr;  // takes the initialisers' place where it is given
  std::string path;                  // its name, for errors
};

// Fills every buffer of the replica whose buffers are named `prefix`/…: weights, optimiser state and statistics from
// `start`, and the batch of a resident source, once and for all, from `source`.
void set_replica_state(const Binding& binding, const Loop& loop, const std::string& prefix, const Source& source,
                       const StartingState& start);

// Reads weights and statistics back and appends them by name.
void append_replica(TensorFile& file, const Binding& binding, const Loop& loop, const std::string& prefix,
                    int32_t device);

}  // namespace arbalest
