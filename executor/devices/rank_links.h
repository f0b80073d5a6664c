// SPDX-License-Identifier: Apache-2.0
#pragma once
// Connections between ranks for the arrays of CPU devices: Gloo's over TCP, or MPI's (Collectives in
// executor/world/world.h).

#include <memory>
#include <utility>
#include <vector>

#include "executor/world/ranks.h"
#include "ops/replicas/rank_exchange.h"

namespace arbalest {

class RankLinks : public RankExchange {
 public:
  int rank() const override { return ranks_->rank(); }
  const std::vector<int>& ranks_of_arrays() const override { return ranks_of_arrays_; }
  virtual void abort() = 0;  // ends exchange() on another thread; no further one begins

 protected:
  RankLinks(std::shared_ptr<Ranks> ranks, std::vector<int> ranks_of_arrays)
      : ranks_(std::move(ranks)), ranks_of_arrays_(std::move(ranks_of_arrays)) {}

  const std::shared_ptr<Ranks> ranks_;

 private:
  const std::vector<int> ranks_of_arrays_;
};

// Connect this rank with every other; each rank calls the same at the same time. `ranks_of_arrays`: see RankExchange.
// Throw RunError, also if the build lacks the library.
std::shared_ptr<RankLinks> make_gloo_links(std::shared_ptr<Ranks> ranks, std::vector<int> ranks_of_arrays);
std::shared_ptr<RankLinks> make_mpi_links(std::shared_ptr<Ranks> ranks, std::vector<int> ranks_of_arrays);

}  // namespace arbalest
