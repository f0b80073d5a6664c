// SPDX-License-Identifier: Apache-2.0
#pragma once
// The ranges of a session's numbers, as the command's options have them.

#include "executor/session/session.h"

namespace arbalest {

// Throws GraphError for a number that is out of its range, by its setting's name, with what it may be.
void check_ranges(const SessionOptions& options);

}  // namespace arbalest
