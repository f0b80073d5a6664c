// SPDX-License-Identifier: Apache-2.0
#pragma once
// Resources that collectives share: a communicator and a stream for each device of the process.

#include <nccl.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <vector>

#include "ops/cuda/cuda_context.h"

namespace arbalest {

// Throws RunError that names the devices, the call and NCCL's words for the error.
[[noreturn]] void fail_nccl(ncclResult_t status, const char* call, const std::vector<int>& devices);

// Makes NCCL's name of a group of communicators, which is handed to all its processes. Throws RunError.
ncclUniqueId make_collective_id();

// The context of operators that span devices (Op::collective). Input and output places[i] are memory of devices[i];
// those at other places are other processes'. Kernels issue to streams[i], not to KernelContext::stream; one thread at
// a time issues, in the same order always and everywhere. NCCL connects devices at the first collective of each kind,
// unless the program has set NCCL_RUNTIME_CONNECT=0 before: then it does so when the context is made.
struct CollectiveContext : DeviceContext {
  // Connects the devices, each of which is given once; takes seconds. Throws RunError.
  explicit CollectiveContext(std::vector<int> device_ordinals);
  // Connects the devices with those of other processes, which all call it at the same time, for so many places in all.
  // `id`: as one of them made it. `go_on` is called now and then, and throws to give up. Throws RunError if the others
  // are not there within `patience` seconds.
  CollectiveContext(std::vector<int> device_ordinals, std::vector<int> places, int size, const ncclUniqueId& id,
                    double patience, const std::function<void()>& go_on);
  ~CollectiveContext();  // waits for what was issued, unless aborted
  CollectiveContext(const CollectiveContext&) = delete;
  CollectiveContext& operator=(const CollectiveContext&) = delete;

  // Throws RunError, naming the device, if a communicator met an error after its calls had returned.
  void check() const;
  // Calls its last argument, which aborts the communicator of this device of this context; indices of both.
  using Around = std::function<void(size_t context, size_t device, const std::function<void()>& abort)>;
  // Ends collectives that are under way on the devices of all these contexts, also those that would never end, and
  // whatever thread hangs in issuing one. None can be issued afterwards. Contexts of the same devices have to be
  // aborted by one call: what one of them frees waits for kernels of the others. Each communicator is aborted on a
  // thread of its own, where `around` is called, if given.
  static void abort(const std::vector<CollectiveContext*>& contexts, const Around& around = {}) noexcept;
  bool aborted() const { return aborted_; }
  // Closes the thread's NCCL group, and returns once what it holds was issued. Throws RunError.
  void end_group(const char* call) const;

  std::vector<int> devices;
  std::vector<int> places;  // of the devices' arrays among all
  int size = 0;             // arrays in all
  std::vector<ncclComm_t> communicators;
  std::vector<cudaStream_t> streams;  // non-blocking, of the greatest priority

 private:
  void make_streams();
  bool settled() const;  // no call is under way any more; throws RunError, as check() does
  void release() noexcept;

  const bool spans_processes_ = false;  // calls do not wait then
  mutable std::mutex looking_;          // at the communicators, which an abort frees
  std::atomic<bool> aborted_{false};
};

// The request's context, which must have a place for each input; throws RunError if it does not.
CollectiveContext& collective_context(const KernelRequest& request);

}  // namespace arbalest
