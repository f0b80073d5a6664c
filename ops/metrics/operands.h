// SPDX-License-Identifier: Apache-2.0
#pragma once
// The places of operands of metrics.

#include <cstddef>

namespace arbalest {

struct KeepRowsInput {
  enum : size_t { State, Rows };
};
struct TallyInput {  // and what more it takes behind the first metric
  enum : size_t { State, Metrics };
};

}  // namespace arbalest
