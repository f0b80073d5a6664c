// SPDX-License-Identifier: Apache-2.0
#include "ops/replicas/collective_context.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <set>
#include <thread>

#include "base/in_threads.h"
#include "base/setting.h"
#include "graph/graph.h"
#include "graph/op.h"

namespace arbalest {
namespace {

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 22, 0), "NCCL aborts several communicators at once since 2.22");

constexpr auto kPause = std::chrono::milliseconds(2);  // between looks at calls that do not wait

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

ncclUniqueId make_collective_id() {
  ncclUniqueId id;
  const ncclResult_t status = ncclGetUniqueId(&id);
  if (status != ncclSuccess) fail_nccl(status, "ncclGetUniqueId", {});
  return id;
}

void CollectiveContext::make_streams() {
  if (devices.empty() || std::set<int>(devices.begin(), devices.end()).size() != devices.size()) {
    throw RunError(fmt::format("collectives over {} devices ({}); expected one or more, each once", devices.size(),
                               names_of(devices)));
  }
  for (const int device : devices) {
    CUDA_CHECK(cudaSetDevice(device));
    streams.push_back(make_stream());
  }
}

CollectiveContext::CollectiveContext(std::vector<int> device_ordinals)
    : devices(std::move(device_ordinals)), places(devices.size()), size(int(devices.size())) {
  std::iota(places.begin(), places.end(), 0);
  const CurrentDevice restored;
  try {
    make_streams();
    std::vector<ncclComm_t> connected(devices.size(), nullptr);
    const ncclResult_t status = ncclCommInitAll(connected.data(), int(devices.size()), devices.data());
    if (status != ncclSuccess) fail_nccl(status, "ncclCommInitAll", devices);
    communicators = std::move(connected);
  } catch (...) {
    release();
    throw;
  }
}

CollectiveContext::CollectiveContext(std::vector<int> device_ordinals, std::vector<int> device_places, int all,
                                     const ncclUniqueId& id, double patience, const std::function<void()>& go_on)
    : devices(std::move(device_ordinals)), places(std::move(device_places)), size(all), spans_processes_(true) {
  const CurrentDevice restored;
  try {
    make_streams();
    // Calls do not wait for other processes, so that what a lost one holds up can be aborted.
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    communicators.assign(devices.size(), nullptr);
    ncclGroupStart();
    ncclResult_t status = ncclSuccess;
    for (size_t i = 0; i < devices.size() && (status == ncclSuccess || status == ncclInProgress); ++i) {
      CUDA_CHECK(cudaSetDevice(devices[i]));
      status = ncclCommInitRankConfig(&communicators[i], size, id, places[i], &config);
    }
    const ncclResult_t ended = ncclGroupEnd();
    if (status == ncclSuccess || status == ncclInProgress) status = ended;
    if (status != ncclSuccess && status != ncclInProgress) fail_nccl(status, "ncclCommInitRankConfig", devices);
    const std::chrono::duration<double> bound(patience);
    const auto began = std::chrono::steady_clock::now();
    while (!settled()) {
      go_on();
      if (std::chrono::steady_clock::now() - began > bound) {
        throw RunError(fmt::format(
            "{}: NCCL has not connected {} GPUs of several processes for {:.0f} s; NCCL_SOCKET_IFNAME names the "
            "network interface that it uses, NCCL_DEBUG=INFO shows what it waits for, and a longer {} gives it more "
            "time",
            names_of(devices), size, patience, name_of(SettingKey::DeviceTimeout)));
      }
      std::this_thread::sleep_for(kPause);
    }
  } catch (...) {
    abort({this});
    release();
    throw;
  }
}

CollectiveContext::~CollectiveContext() {
  release();
}

bool CollectiveContext::settled() const {
  const std::scoped_lock lock(looking_);
  if (aborted_) return true;  // NCCL gave the communicators' memory back
  for (size_t i = 0; i < communicators.size(); ++i) {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t status = ncclCommGetAsyncError(communicators[i], &state);
    if (status != ncclSuccess) fail_nccl(status, "ncclCommGetAsyncError", {devices[i]});
    if (state == ncclInProgress) return false;
    if (state != ncclSuccess) fail_nccl(state, "a call", {devices[i]});
  }
  return true;
}

void CollectiveContext::end_group(const char* call) const {
  const ncclResult_t ended = ncclGroupEnd();
  if (ended == ncclInProgress) {
    while (!settled()) std::this_thread::yield();
  } else if (ended != ncclSuccess) {
    fail_nccl(ended, call, devices);
  }
}

void CollectiveContext::check() const {
  settled();
}

// ncclCommAbort() first sets the flag that ends its communicator's kernels, then waits: for a group of NCCL that is
// under way, which may be one over several communicators, and for all kernels of the GPU, in cudaFree() and
// cudaFreeHost(). On threads of their own all set their flags before they wait. In a group of NCCL they would do so one
// after the other.
void CollectiveContext::abort(const std::vector<CollectiveContext*>& contexts, const Around& around) noexcept {
  struct Place {
    size_t context, device;
  };
  std::vector<std::unique_lock<std::mutex>> looking;
  std::vector<Place> places;
  for (size_t c = 0; c < contexts.size(); ++c) {
    looking.emplace_back(contexts[c]->looking_);
    if (contexts[c]->aborted_.exchange(true)) continue;
    for (size_t d = 0; d < contexts[c]->communicators.size(); ++d) {
      if (contexts[c]->communicators[d] != nullptr) places.push_back({c, d});
    }
  }
  in_threads(places.size(), places.size(), [&](size_t i) {
    const auto [c, d] = places[i];
    const ncclComm_t communicator = contexts[c]->communicators[d];
    const std::function<void()> abort = [communicator, device = contexts[c]->devices[d]] {
      int before = -1;
      const bool restores = cudaGetDevice(&before) == cudaSuccess;  // a thread of the caller takes part
      cudaSetDevice(device);  // NCCL returns to a thread's device, which makes a context there
      ncclCommAbort(communicator);
      if (restores) cudaSetDevice(before);
    };
    if (around) return around(c, d, abort);
    abort();
  });
}

void CollectiveContext::release() noexcept {
  // Other processes may not come to this point: what does not end is aborted.
  if (spans_processes_ && !aborted_) {
    constexpr auto kBound = std::chrono::seconds(5);
    bool fine = true;
    for (const ncclComm_t communicator : communicators) {
      const ncclResult_t status = ncclCommFinalize(communicator);
      fine = fine && (status == ncclSuccess || status == ncclInProgress);
    }
    const auto until = std::chrono::steady_clock::now() + kBound;
    const auto ended = [&] {
      return std::all_of(communicators.begin(), communicators.end(), [](ncclComm_t communicator) {
        ncclResult_t state = ncclSuccess;
        return ncclCommGetAsyncError(communicator, &state) == ncclSuccess && state != ncclInProgress;
      });
    };
    while (fine && !ended()) {
      fine = std::chrono::steady_clock::now() < until;
      std::this_thread::sleep_for(kPause);
    }
    if (!fine) abort({this});
  }
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
  if (size_t(context.size) != request.inputs.size()) {
    throw RunError(fmt::format("{}: {} inputs, for {} devices, of which {} are here; expected one for each device",
                               node, request.inputs.size(), context.size, names_of(context.devices)));
  }
  return context;
}

}  // namespace arbalest
