// SPDX-License-Identifier: Apache-2.0
#pragma once
// Resources that collectives share: a communicator and a stream for each device of the process.

#include <nccl.h>

#include <atomic>
#include <vector>

#include "ops/cuda/cuda_context.h"

namespace arbalest {

// Throws RunError that names the devices, the call and NCCL's words for the error.
[[noreturn]] void fail_nccl(ncclResult_t status, const char* call, const std::vector<int>& devices);

// The context of operators that span devices (Op::collective), whose input and output i are memory of devices[i]. Their
// kernels issue to streams[i], not to KernelContext::stream; one thread at a time issues, in the same order always.
struct CollectiveContext : DeviceContext {
  // Connects the devices, each of which is given once; takes seconds. Throws RunError.
  explicit CollectiveContext(std::vector<int> device_ordinals);
  ~CollectiveContext();  // waits for what was issued, unless aborted
  CollectiveContext(const CollectiveContext&) = delete;
  CollectiveContext& operator=(const CollectiveContext&) = delete;

  // Throws RunError, naming the device, if a communicator met an error after its calls had returned.
  void check() const;
  // Ends collectives that are under way on the devices, also those that would never end, and whatever thread hangs in
  // issuing one. None can be issued afterwards.
  void abort() noexcept;
  bool aborted() const { return aborted_; }

  std::vector<int> devices;
  std::vector<ncclComm_t> communicators;
  std::vector<cudaStream_t> streams;  // non-blocking, of the greatest priority

 private:
  void release() noexcept;

  std::atomic<bool> aborted_{false};
};

// The request's context, which must have a device for each input; throws RunError if it does not.
CollectiveContext& collective_context(const KernelRequest& request);

}  // namespace arbalest
