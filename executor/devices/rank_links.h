// SPDX-License-Identifier: Apache-2.0
#pragma once
// Connections between ranks for the arrays of CPU devices: Gloo's, over TCP.

#include <memory>
#include <mutex>
#include <vector>

#include "executor/world/ranks.h"
#include "ops/replicas/rank_exchange.h"

namespace arbalest {

class RankLinks final : public RankExchange {
 public:
  // Connects this rank with every other; each rank does so at the same time. `ranks_of_arrays`: see RankExchange.
  // Throws RunError, also if the build has no Gloo.
  RankLinks(std::shared_ptr<Ranks> ranks, std::vector<int> ranks_of_arrays);
  ~RankLinks() override;

  int rank() const override { return ranks_->rank(); }
  const std::vector<int>& ranks_of_arrays() const override { return ranks_of_arrays_; }
  void exchange(const std::vector<Piece>& sent, const std::vector<Piece>& received) override;
  void abort();  // ends exchange() on another thread; no further one begins

 private:
  struct Transport;

  const std::shared_ptr<Ranks> ranks_;
  const std::vector<int> ranks_of_arrays_;
  std::unique_ptr<Transport> transport_;
};

}  // namespace arbalest
