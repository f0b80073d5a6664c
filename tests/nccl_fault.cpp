// SPDX-License-Identifier: Apache-2.0

// A library for LD_PRELOAD that makes NCCL fail: NCCL_FAULT is the kind and the ncclAllReduce it happens at, counted
// over all devices from 0.
//   refused:N   the call returns an error
//   remote:N    from then on communicators report an error of another device
//   lost:N      the call does nothing, so that the other devices wait for this one

#include <dlfcn.h>
#include <nccl.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace {

struct Fault {
  std::string_view kind;
  long at = -1;
};

Fault read_fault() {
  const char* text = std::getenv("NCCL_FAULT");
  const std::string_view fault = text != nullptr ? text : "";
  const size_t colon = fault.find(':');
  if (colon == std::string_view::npos) {
    std::fprintf(stderr, "nccl_fault: NCCL_FAULT is '%s'; expected refused:N, remote:N or lost:N\n", text ? text : "");
    std::exit(2);
  }
  return {fault.substr(0, colon), std::strtol(text + colon + 1, nullptr, 10)};
}

const Fault& fault() {
  static const Fault known = read_fault();
  return known;
}

std::atomic<long> calls{0};

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t op,
                                      ncclComm_t communicator, cudaStream_t stream) {
  static const auto real = next<decltype(&ncclAllReduce)>("ncclAllReduce");
  const bool now = calls.fetch_add(1) == fault().at;
  if (now && fault().kind == "refused") return ncclSystemError;
  if (now && fault().kind == "lost") return ncclSuccess;
  return real(from, to, count, type, op, communicator, stream);
}

extern "C" ncclResult_t ncclCommGetAsyncError(ncclComm_t communicator, ncclResult_t* met) {
  static const auto real = next<decltype(&ncclCommGetAsyncError)>("ncclCommGetAsyncError");
  const ncclResult_t status = real(communicator, met);
  if (fault().kind == "remote" && calls.load() > fault().at) *met = ncclRemoteError;
  return status;
}
