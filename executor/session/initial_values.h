// SPDX-License-Identifier: Apache-2.0
#pragma once
// The initial content of a replica's memory.

#include <map>
#include <string>
#include <vector>

#include "executor/run/binding.h"
#include "executor/session/state.h"
#include "io/sources/source.h"

namespace arbalest {

struct Initialisation {
  uint64_t seed = 1;
  const WeightsFile* file = nullptr;  // takes the initialisers' place if it is given
  int threads = 1;                    // to draw numbers with
};

// Initial content of a replica's memory, by value: weights, optimiser state and statistics from `start`, and the batch
// of a resident source, which never changes, from `source`. Values in `without` are left out, since others fill them
// and drawing weights takes a while. A slot of the optimiser that starts as zeros is empty here: of large models the
// host would need that memory twice.
using InitialValues = std::map<ValueId, std::vector<std::byte>>;
InitialValues initial_values(const Loop& loop, const Source& source, const Initialisation& start,
                             const std::vector<ValueId>& without = {});
std::string sum_of(const InitialValues& values);  // a checksum of all

// Writes the content into the replica's memory, before a run.
void put_values(const Binding& binding, const Replica& replica, const Graph& graph, const InitialValues& content);

}  // namespace arbalest
