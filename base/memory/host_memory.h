// SPDX-License-Identifier: Apache-2.0
#pragma once
// The machine's physical memory.

#include <cstdint>

namespace arbalest {

// The size in bytes, free or not; −1 if the system does not tell.
int64_t host_memory();

}  // namespace arbalest
