// SPDX-License-Identifier: Apache-2.0
#pragma once
// Between files and memory: files hold logical row-major order (N, C, H, W) and (K, C, R, S), memory holds a tensor in
// the layout of its type.

#include <cstddef>

#include "graph/types.h"

namespace arbalest {

// Copies a tensor from row-major order to that of its type's layout. No overlap.
void to_memory_order(const TensorType& type, const void* row_major, void* memory);

// The inverse.
void to_row_major(const TensorType& type, const void* memory, void* row_major);

}  // namespace arbalest
