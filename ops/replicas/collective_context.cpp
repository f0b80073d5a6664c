// SPDX-License-Identifier: Apache-2.0
#include "ops/replicas/collective_context.h"

#include <fmt/format.h>

#include <cstdlib>
#include <set>

#include "graph/graph.h"
#include "graph/op.h"

namespace arbalest {
namespace {

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 22, 0), "NCCL aborts several communicators at once since 2.22");

// "cuda:0, cuda:1"; "cuda" if there is none.
std::string names_of(const std::vector<int>& devices) {
  std::string names;
  for (const int device : devices) names += fmt::format("{}cuda:{}", names.empty() ? "" : ", ", device);
  return names.empty() ? "cuda" : names;
}

// Leaves the thread's current device as it was.
class CurrentDevice {
 public:
  CurrentDevice() { CUDA_CHECK(cudaGetDevice(&device_)); }
  ~CurrentDevice() { cudaSetDevice(device_); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int device_ = 0;
};

// On the current device.
cudaStream_t make_stream() {
  int least = 0, greatest = 0;
  CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream = nullptr;
  CUDA_CHECK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  return stream;
}

}  // namespace

void fail_nccl(ncclResult_t status, const char* call, const std::vector<int>& devices) {
  const char* last = ncclGetLastError(nullptr);
  const std::string detail = last != nullptr ? last : "";
  throw RunError(fmt::format("{}: {}: {}{}{}", names_of(devices), call, ncclGetErrorString(status),
                             detail.empty() ? "" : ": ", detail));
}

CollectiveContext::CollectiveContext(std::vector<int> device_ordinals) : devices(std::move(device_ordinals)) {
  if (devices.empty() || std::set<int>(devices.begin(), devices.end()).size() != devices.size()) {
    throw RunError(fmt::format("collectives over {} devices ({}); expected one or more, each once", devices.size(),
                               names_of(devices)));
  }
  const CurrentDevice restored;
  try {
    for (const int device : devices) {
      CUDA_CHECK(cudaSetDevice(device));
      streams.push_back(make_stream());
    }
    // All is connected here. Otherwise the first collective of each kind does it: it would take memory that nothing has
    // planned, and wait for devices whose part never comes.
    setenv("NCCL_RUNTIME_CONNECT", "0", 0);
    std::vector<ncclComm_t> connected(devices.size(), nullptr);
    const ncclResult_t status = ncclCommInitAll(connected.data(), int(devices.size()), devices.data());
    if (status != ncclSuccess) fail_nccl(status, "ncclCommInitAll", devices);
    communicators = std::move(connected);
  } catch (...) {
    release();
    throw;
  }
}

CollectiveContext::~CollectiveContext() {
  release();
}

void CollectiveContext::check() const {
  if (aborted_) return;  // NCCL gave the communicators' memory back
  for (size_t i = 0; i < communicators.size(); ++i) {
    ncclResult_t met = ncclSuccess;
    const ncclResult_t status = ncclCommGetAsyncError(communicators[i], &met);
    if (status != ncclSuccess) fail_nccl(status, "ncclCommGetAsyncError", {devices[i]});
    if (met != ncclSuccess) fail_nccl(met, "a collective", {devices[i]});
  }
}

void CollectiveContext::abort() noexcept {
  if (aborted_.exchange(true)) return;
  // All are aborted in one group, because a communicator that is aborted alone may wait for the others.
  ncclGroupStart();
  for (const ncclComm_t communicator : communicators) ncclCommAbort(communicator);
  ncclGroupEnd();
}

void CollectiveContext::release() noexcept {
  for (const ncclComm_t communicator : communicators) {
    if (!aborted_) ncclCommDestroy(communicator);
  }
  communicators.clear();
  for (const cudaStream_t stream : streams) cudaStreamDestroy(stream);
  streams.clear();
}

CollectiveContext& collective_context(const KernelRequest& request) {
  const std::string node = fmt::format("node '{}' ({})", request.node.name, request.node.op->qualified_name());
  if (request.device == nullptr) {
    throw RunError(node + ": a collective needs a CollectiveContext, and the request has none");
  }
  auto& context = static_cast<CollectiveContext&>(*request.device);
  if (context.devices.size() != request.inputs.size()) {
    throw RunError(fmt::format("{}: {} inputs, for devices {}; expected one for each device", node,
                               request.inputs.size(), names_of(context.devices)));
  }
  return context;
}

}  // namespace arbalest
