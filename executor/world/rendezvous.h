// SPDX-License-Identifier: Apache-2.0
#pragma once
// The meeting of a world's ranks: rank 0 waits at a port, the others come.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "executor/world/connection.h"
#include "executor/world/world.h"

namespace arbalest {

struct Met {
  // At rank 0: by rank, nullptr for itself. Elsewhere: the one to rank 0.
  std::vector<std::unique_ptr<Connection>> connections;
  std::vector<std::string> hosts;  // by rank
  std::string own_address;         // of this host, as ranks of other hosts reach it
  // At rank 0, if it takes ranks back: the port, at which they come.
  std::unique_ptr<Listener> door;
  bool returns = false;  // elsewhere: the others have begun, and this rank was lost
};

// A process that has come to rank 0 and knows the secret.
struct Visitor {
  int rank = -1, size = 0;
  std::string host, process;
  std::string name() const;  // "rank 2 on node07 (process 4711)"
};

// Returns once all ranks are there and have shown that they know the secret. Throws RunError, naming ranks and hosts,
// if one of them is missing when WorldSettings::patience is over, was started twice, or knows another secret. Throws
// InterruptedError, on all ranks that are there, if one of them is asked to end.
Met meet(const WorldSettings& settings);
std::string interruption(const WorldSettings& settings);  // "rank 2 on node07 was interrupted by SIGTERM before …"

// Rank 0: hears who has come. std::nullopt: nobody of this world, which `stranger` says if the secret was another.
std::optional<Visitor> greet(const WorldSettings& settings, Connection& connection, std::string& stranger);
// Rank 0: tells a rank that has met who the others are. `returns`: they have begun.
void send_hosts(Connection& connection, const std::vector<std::string>& hosts, const std::string& address,
                bool returns);

}  // namespace arbalest
