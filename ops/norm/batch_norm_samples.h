// SPDX-License-Identifier: Apache-2.0
#pragma once
// Operands of samples that definitions of batch norms share.

#include "graph/op.h"

namespace arbalest {

// An operand that a sample leaves out.
inline Sample::Input nothing() {
  return {{DataType::Token, {}}, 0, 0, false};
}

// An image with more rows than all blocks of a GPU take at once, and with some after the last whole batch.
inline Shape image_in_turns() {
  return {5, 512, 31, 29};
}

}  // namespace arbalest
