#pragma once
// Between files and memory: files hold logical row-major order (N, C, H, W) and (K, C, R, S), memory holds rank-4
// tensors channels-last (N, H, W, C) and (K, R, S, C). Tensors of other ranks are the same in both.

#include <cstddef>

#include "graph/types.h"

namespace arbalest {

// Copies a tensor of logical `shape`, elements of any size in bytes, from row-major to memory order. No overlap.
void to_channels_last(const Shape& shape, size_t element_size, const void* row_major, void* memory);

// The inverse.
void from_channels_last(const Shape& shape, size_t element_size, const void* memory, void* row_major);

}  // namespace arbalest
