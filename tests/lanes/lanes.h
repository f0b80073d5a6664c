// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs the source of a CUDA kernel on the CPU, without a GPU: each thread of a block is a context of its own that goes
// on until it waits for others. Headers in ops/cuda here take the place of those with the same names, so that a
// kernel's .cuh compiles unchanged. Shared memory begins as NaN, which a sum of what nobody wrote would be.
//
// A test includes this before the kernel. What a kernel uses beyond these headers has to be added to them.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <functional>

#undef __device__
#undef __global__
#undef __host__
#undef __launch_bounds__
#undef __shared__
#define __device__
#define __global__
#define __host__
#define __launch_bounds__(...)
#define __shared__ static
#define threadIdx (::arbalest::lanes::thread_index())
#define blockIdx (::arbalest::lanes::block_index())
#define blockDim (::arbalest::lanes::block_size())
#define __syncthreads ::arbalest::lanes::wait_for_block
#define __syncwarp ::arbalest::lanes::wait_for_warp

namespace arbalest::lanes {

inline constexpr int kWarp = 32, kMostWarps = 32, kSharedBytes = 160 << 10;

// Calls kernel() for each thread of each block, one block after the other. `threads`: of a block, a multiple of 32;
// `shared`: bytes of dynamic shared memory. Throws std::logic_error where threads wait for others that have ended, and
// what a thread throws.
void launch(dim3 grid, int threads, int shared, const std::function<void()>& kernel);

dim3 thread_index();
dim3 block_index();
dim3 block_size();
void wait_for_block();
void wait_for_warp();

unsigned char* shared_memory();  // at an address that 128 divides
int shared_bytes();              // of the launch

}  // namespace arbalest::lanes
