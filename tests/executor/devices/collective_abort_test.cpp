// SPDX-License-Identifier: Apache-2.0

// All communicators of a process are aborted at once. No GPU is needed: the calls of NCCL and of CUDA that this takes
// are these here and those of cuda_poller_test.cpp.

#include <cuda_runtime.h>
#include <doctest/doctest.h>
#include <nccl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "executor/devices/call_watch.h"
#include "ops/replicas/collective_context.h"

using namespace arbalest;
using namespace std::chrono_literals;

namespace collective_abort_test {
namespace {

// Stands for NCCL: an abort waits until all communicators are flagged, as cudaFree() waits for what runs on the GPU.
struct Nccl {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<int> devices;     // of communicators, in the order in which they were made
  std::vector<size_t> flagged;  // communicators, as their aborts began
  size_t ended = 0;             // aborts that did not wait in vain
  int held = -1;                // a communicator whose abort does not return
  bool on_own_devices = true;   // each was aborted by a thread with the communicator's device
};

Nccl nccl;

ncclComm_t name_of(size_t index) {
  return reinterpret_cast<ncclComm_t>(index + 1);
}

}  // namespace
}  // namespace collective_abort_test

using collective_abort_test::nccl;

extern "C" ncclResult_t ncclCommInitAll(ncclComm_t* communicators, int count, const int* devices) {
  for (int i = 0; i < count; ++i) {
    communicators[i] = collective_abort_test::name_of(nccl.devices.size());
    nccl.devices.push_back(devices[i]);
  }
  return ncclSuccess;
}

extern "C" ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  const size_t index = reinterpret_cast<size_t>(communicator) - 1;
  int device = -1;
  cudaGetDevice(&device);
  std::unique_lock lock(nccl.mutex);
  nccl.on_own_devices = nccl.on_own_devices && device == nccl.devices[index];
  nccl.flagged.push_back(index);
  nccl.changed.notify_all();
  const bool all = nccl.changed.wait_for(lock, 5s, [] { return nccl.flagged.size() == nccl.devices.size(); });
  if (all) ++nccl.ended;
  nccl.changed.wait_for(lock, 20s, [index] { return nccl.held != int(index); });
  return ncclSuccess;
}

extern "C" ncclResult_t ncclCommDestroy(ncclComm_t) {
  return ncclSuccess;
}

extern "C" cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return cudaSuccess;
}

extern "C" cudaError_t cudaStreamCreateWithPriority(cudaStream_t*, unsigned, int) {
  return cudaSuccess;
}

extern "C" cudaError_t cudaStreamDestroy(cudaStream_t) {
  return cudaSuccess;
}

namespace collective_abort_test {

TEST_CASE("communicators of several lanes are all flagged before the abort of one waits") {
  CollectiveContext training({0, 1}), validation({0, 1});
  REQUIRE(nccl.devices == std::vector{0, 1, 0, 1});
  CollectiveContext::abort({&training, &validation});
  CHECK(nccl.ended == 4);
  CHECK(nccl.on_own_devices);
  CHECK(training.aborted());
  CHECK(validation.aborted());
  CollectiveContext::abort({&training, &validation});
  CHECK(nccl.flagged.size() == 4);
}

TEST_CASE("an abort that does not return is named, and others do return") {
  nccl.devices.clear();
  nccl.flagged.clear();
  CollectiveContext training({0, 1}), validation({0, 1});
  nccl.held = 3;
  CallWatch calls(1, 1h);  // long enough for the other aborts on a busy machine
  std::vector<std::vector<CallWatch::Caller*>> callers(2);
  for (size_t context = 0; context < 2; ++context) {
    for (const char* device : {"cuda:0", "cuda:1"}) {
      callers[context].push_back(&calls.add({device}, context == 0 ? "the abort of 'a'" : "the abort of 'b'"));
    }
  }
  std::vector<std::string> told;
  calls.listen({[&](const CallWatch::Late& late) {
                  const std::scoped_lock lock(nccl.mutex);
                  told.push_back(late.message);
                  nccl.held = -1;
                  nccl.changed.notify_all();
                },
                {}});
  CollectiveContext::abort({&training, &validation},
                           [&](size_t context, size_t device, const std::function<void()>& abort) {
                             const CallWatch::Call call(*callers[context][device]);
                             abort();
                           });
  calls.listen({});
  REQUIRE(told.size() == 1);
  CHECK(told[0].starts_with("the abort of 'b' for cuda:1 has not returned for 1 s; "));
}

}  // namespace collective_abort_test
