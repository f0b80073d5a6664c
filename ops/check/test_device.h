// SPDX-License-Identifier: Apache-2.0
#pragma once
// Devices that the harness runs kernels on: memory, copies, and execution, on the CPU or on a CUDA device.

#include <cstddef>
#include <memory>
#include <string>

#include "graph/op.h"

namespace arbalest::test {

class TestDevice {
 public:
  virtual ~TestDevice() = default;
  virtual const KernelFactory& factory(const Op& op) const = 0;
  virtual DeviceContext* context() = 0;
  virtual void* stream() = 0;
  virtual void* allocate(size_t bytes) = 0;  // 256-byte aligned
  virtual void release(void* memory) = 0;
  virtual void upload(void* device, const void* host, size_t bytes) = 0;
  virtual void download(void* host, const void* device, size_t bytes) = 0;
  virtual void run(const Kernel& kernel, const KernelContext& context) = 0;  // and waits

  // Recording: run() once more for libraries to settle, record into a CUDA graph, replay as often as asked.
  virtual bool can_record() const { return false; }
  virtual void record(const Kernel&, const KernelContext&) {}
  virtual void replay() {}  // and waits
};

std::unique_ptr<TestDevice> make_cpu_device();

// nullptr, and why, if there is no CUDA device or the build is without CUDA.
#ifdef ARBALEST_CUDA
std::unique_ptr<TestDevice> make_cuda_device(std::string& why_not);
#else
inline std::unique_ptr<TestDevice> make_cuda_device(std::string& why_not) {
  why_not = "built without CUDA";
  return nullptr;
}
#endif

}  // namespace arbalest::test
