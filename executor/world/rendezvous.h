// SPDX-License-Identifier: Apache-2.0
#pragma once
// The meeting of a world's ranks: rank 0 waits at a port, the others come.

#include <memory>
#include <vector>

#include "executor/world/connection.h"
#include "executor/world/world.h"

namespace arbalest {

struct Met {
  // At rank 0: by rank, nullptr for itself. Elsewhere: the one to rank 0.
  std::vector<std::unique_ptr<Connection>> connections;
  std::vector<std::string> hosts;  // by rank
  std::string own_address;         // of this host, as ranks of other hosts reach it
};

// Returns once all ranks are there and have shown that they know the secret. Throws RunError, naming ranks and hosts,
// if one of them is missing when WorldSettings::patience is over, was started twice, or knows another secret.
Met meet(const WorldSettings& settings);

}  // namespace arbalest
