#pragma once
// How the copy engine of Hopper GPUs fetches tiles of a matrix in device memory.

#include <cuda.h>

#include <cstdint>

namespace arbalest {

struct CudaContext;

inline constexpr int kTensorMapColumns = 64;  // of a box: rows of 128 bytes, as far as the engine swizzles

// Boxes of `box_rows` (at most 256) × kTensorMapColumns of a matrix of bfloat16, whose rows begin `row_pitch` elements
// apart, a multiple of 8; zeros where these go beyond it. Rows may overlap. `matrix` is aligned to 16 bytes. Throws
// RunError.
CUtensorMap tensor_map(const void* matrix, int64_t rows, int64_t columns, int64_t row_pitch, int64_t box_rows);

// Whether kernels that fetch tiles so, and multiply them by Hopper's matrix units, run on the context's device: compute
// capability 9.0, in a build for sm_90a (-Dgpu_arch).
bool has_hopper_kernels(const CudaContext& context);

}  // namespace arbalest
