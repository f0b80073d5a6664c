// SPDX-License-Identifier: Apache-2.0
#pragma once
// Functions that CPU and CUDA kernels share are marked for both compilers.

#ifdef __CUDACC__
#define ARBALEST_HOST_DEVICE __host__ __device__
#else
#define ARBALEST_HOST_DEVICE
#endif
