// SPDX-License-Identifier: Apache-2.0
#pragma once
// The way by which a collective on CPUs reaches arrays of other processes.

#include <cstdint>
#include <vector>

#include "graph/kernel.h"

namespace arbalest {

// The context of operators that span devices (Op::collective), if those are CPUs of several processes.
class RankExchange : public DeviceContext {
 public:
  virtual ~RankExchange() = default;
  virtual int rank() const = 0;
  // By array of a collective, in the order of the plan's devices: the rank whose memory it is in.
  virtual const std::vector<int>& ranks_of_arrays() const = 0;

  struct Piece {
    int rank = 0;  // from or to which it goes
    void* data = nullptr;
    int64_t bytes = 0;
  };
  // Every rank calls it at the same time. The n-th piece that is sent to a rank is the n-th that it receives from here.
  // Returns once all pieces have been sent and received; throws RunError if a rank is lost.
  virtual void exchange(const std::vector<Piece>& sent, const std::vector<Piece>& received) = 0;
};

}  // namespace arbalest
