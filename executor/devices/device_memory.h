// SPDX-License-Identifier: Apache-2.0
#pragma once
// The total memory of GPUs, free or not.

#include <cstdint>

namespace arbalest {

int64_t cuda_device_memory(int index);  // in bytes; −1: unknown

}  // namespace arbalest
