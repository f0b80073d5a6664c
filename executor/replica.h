#pragma once
// The state of one replica in its device's memory: put there before a run, read back after it.

#include <map>
#include <string>
#include <vector>

#include "executor/binding.h"
#include "executor/state.h"
#include "io/source.h"

namespace arbalest {

struct StartingState {
  uint64_t seed = 1;
  const TensorFile* file = nullptr;  // takes the initialisers' place where it is given
  std::string path;                  // its name, for errors
  int threads = 1;                   // to draw numbers with
};

// What the buffers of a replica start with, by the name of the value: weights, optimiser state and statistics from
// `start`, and the batch of a resident source, once and for all, from `source`. Not the values `without`, which others
// fill: to draw weights takes a while.
using ReplicaContent = std::map<std::string, std::vector<std::byte>>;
ReplicaContent initial_replica(const Loop& loop, const Source& source, const StartingState& start,
                               const std::vector<ValueId>& without = {});

// Puts it into the buffers named `prefix`/…, where there are such.
void put_replica(const Binding& binding, const std::string& prefix, const ReplicaContent& content);

}  // namespace arbalest
