// SPDX-License-Identifier: Apache-2.0

// A library for LD_PRELOAD that makes a GPU fail: CUDA_FAULT is KIND:DEVICE:N. The fault comes with the Nth recording
// that is launched on that device, those of set-up among them, counted from 0.
//   kernel:D:N   a kernel launched with the step writes to an invalid address
//   endless:D:N  a kernel before the step never ends
//   lost:D:N     from then on every call for the device is an error, as if it had fallen off the bus
//   silent:D:N   from then on nothing on the device ends, and no call is an error
//   stuck:D:N    from then on no call for the device returns
//   mute:D:N     from then on calls that ask whether work on the device has ended do not return

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

// Kernel launches that cuda_fault_kernels.cu defines.
void write_nowhere(cudaStream_t stream);
void never_end(cudaStream_t stream);

namespace {

struct Fault {
  char kind[16] = "";
  int device = -1;
  long at = -1;
};

Fault read_fault() {
  const char* text = std::getenv("CUDA_FAULT");
  Fault fault;
  if (text == nullptr || std::sscanf(text, "%15[a-z]:%d:%ld", fault.kind, &fault.device, &fault.at) != 3) {
    std::fprintf(stderr, "cuda_fault: CUDA_FAULT is '%s'; expected KIND:DEVICE:N\n", text != nullptr ? text : "");
    std::exit(2);
  }
  return fault;
}

const Fault& fault() {
  static const Fault known = read_fault();
  return known;
}

std::atomic<long> launches{0};  // on the device
std::atomic<bool> broken{false};

bool is(const char* kind) {
  return std::strcmp(fault().kind, kind) == 0;
}

bool concerned() {
  int device = -1;
  cudaGetDevice(&device);
  return device == fault().device;
}

// Whether a call that the current thread makes now finds the device lost.
bool lost() {
  return broken.load(std::memory_order_relaxed) && is("lost") && concerned();
}

// Whether events of the device stay silent: its own thread asks for them.
bool silent() {
  return broken.load(std::memory_order_relaxed) && is("silent") && concerned();
}

// Never returns from a call for the device if the fault is "stuck"; `asks`: the call asks which work has ended, so
// "mute" holds it up too.
void return_unless_stuck(bool asks = false) {
  if (!broken.load(std::memory_order_relaxed) || !(is("stuck") || (asks && is("mute"))) || !concerned()) return;
  for (;;) pause();
}

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  static const auto real = next<decltype(&cudaGraphLaunch)>("cudaGraphLaunch");
  if (concerned() && launches.fetch_add(1) == fault().at) {
    broken = true;
    if (is("kernel")) write_nowhere(stream);
    if (is("endless")) never_end(stream);
  }
  return_unless_stuck();
  return lost() ? cudaErrorUnknown : real(graph, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  static const auto real = next<decltype(&cudaEventQuery)>("cudaEventQuery");
  return_unless_stuck(true);
  return lost() ? cudaErrorUnknown : silent() ? cudaErrorNotReady : real(event);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  static const auto real = next<decltype(&cudaEventElapsedTime)>("cudaEventElapsedTime");
  return_unless_stuck(true);
  return lost() ? cudaErrorUnknown : silent() ? cudaErrorNotReady : real(milliseconds, from, to);
}

#define LOSE(name, parameters, arguments)                            \
  cudaError_t name parameters {                                      \
    static const auto real = next<cudaError_t(*) parameters>(#name); \
    return_unless_stuck();                                           \
    return lost() ? cudaErrorUnknown : real arguments;               \
  }

LOSE(cudaEventRecord, (cudaEvent_t event, cudaStream_t stream), (event, stream))
LOSE(cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned flags), (stream, event, flags))
LOSE(cudaStreamSynchronize, (cudaStream_t stream), (stream))
LOSE(cudaDeviceSynchronize, (), ())
LOSE(cudaMemcpyAsync, (void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream),
     (to, from, bytes, kind, stream))
LOSE(cudaMemcpy, (void* to, const void* from, size_t bytes, cudaMemcpyKind kind), (to, from, bytes, kind))
LOSE(cudaFree, (void* memory), (memory))
}
