// SPDX-License-Identifier: Apache-2.0
#pragma once
// How the copy engine of Hopper GPUs fetches tiles of a matrix in device memory.

#include <cuda.h>

#include <cstdint>

#include "graph/types.h"

namespace arbalest {

struct DeviceModel;

inline constexpr int kTensorMapColumns = 64;  // of a box: rows of 128 bytes, as far as the engine swizzles

// Boxes of `box_rows` (at most 256) × kTensorMapColumns of a matrix of bfloat16, whose rows begin `row_pitch` elements
// apart, a multiple of 8; zeros where these go beyond it. Rows may overlap. `matrix` is aligned to 16 bytes. Throws
// RunError.
CUtensorMap tensor_map(const void* matrix, int64_t rows, int64_t columns, int64_t row_pitch, int64_t box_rows);

// Boxes of `box_images` × `box_rows` × `box_columns` pixels (each at most 256) and kTensorMapColumns channels of images
// of bfloat16 with the logical shape (N,C,H,W), channels-last in memory. They are zeros where boxes go beyond the
// images, on any side. C is a multiple of 8; `images` is aligned to 16 bytes. Throws RunError.
CUtensorMap tensor_map(const void* images, const Shape& shape, int64_t box_images, int64_t box_rows,
                       int64_t box_columns);

// Whether kernels that fetch tiles so, and multiply them by Hopper's matrix units, run on the device: compute
// capability 9.0, in a build for sm_90a (-Dgpu_arch).
bool has_hopper_kernels(const DeviceModel& device);

}  // namespace arbalest
