// SPDX-License-Identifier: Apache-2.0
#pragma once
// Programmatic dependent launch: kernels whose blocks may start before the kernel ahead of them in the stream has
// ended, and wait there for its results. That hides 0.7 µs of what a launch costs.
// https://docs.nvidia.com/cuda/cuda-c-programming-guide/#programmatic-dependent-launch-and-synchronization

#include <cuda_runtime.h>

#include <utility>

namespace arbalest::cuda {

// Whether the code that the device in use runs knows the instructions below: a build may hold code for several
// architectures (-Dgpu_arch), some older. If it does not, launches are ordinary ones.
bool knows_dependent_launches();

// Waits until the kernels ahead in the stream have ended and their writes can be read. In a kernel that is launched by
// launch_dependent(), every thread calls it before it touches global memory. Without effect in a kernel that is
// launched otherwise.
__device__ inline void wait_for_dependencies() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel start once all blocks have called this or ended. One block at least waits first, or the next
// kernel but one could start before this one's own dependencies have ended. Its blocks take places on the device, which
// they keep while they wait; so a block of much work calls it late, and none before it has waited itself.
__device__ inline void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

struct Launch {
  dim3 grid;
  int threads;
  size_t shared;  // bytes
  cudaStream_t stream;
  bool early = true;  // false: as an ordinary launch
};

// kernel<<<grid, threads, shared, stream>>>(arguments...) of a kernel that calls wait_for_dependencies().
template <typename... Parameters, typename... Arguments>
void launch_dependent(void (*kernel)(Parameters...), const Launch& launch, Arguments&&... arguments) {
  cudaLaunchAttribute early;
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = launch.grid;
  config.blockDim = dim3(unsigned(launch.threads));
  config.dynamicSmemBytes = launch.shared;
  config.stream = launch.stream;
  config.attrs = &early;
  config.numAttrs = launch.early && knows_dependent_launches() ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);  // check_launch() has its error
}
template <typename... Parameters, typename... Arguments>
void launch_dependent(void (*kernel)(Parameters...), dim3 grid, int threads, size_t shared, cudaStream_t stream,
                      Arguments&&... arguments) {
  launch_dependent(kernel, Launch{grid, threads, shared, stream}, std::forward<Arguments>(arguments)...);
}

// Whether pooling, and sums for biases, of a tensor of so many bytes are launched early: for large ones that brought
// nothing.
inline bool is_small(int64_t bytes) {
  return bytes <= int64_t{16} << 20;
}

}  // namespace arbalest::cuda
