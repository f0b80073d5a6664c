// SPDX-License-Identifier: Apache-2.0
#pragma once
// A device as the executor sees it: memory, in-order queues, and word of what has ended. One implementation for CPUs
// (cpu_device.cpp), one for CUDA (cuda_device.cpp); plan, scheduler and tests do not know which.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/device_model.h"
#include "base/error.h"
#include "executor/plan/plan.h"
#include "graph/kernel.h"

namespace arbalest {

class CallWatch;
class TraceRecorder;
struct MemoryUse;

// A node bound to its kernel, with its addresses for one choice of slots.
struct BoundLaunch {
  const Kernel* kernel = nullptr;
  const Node* node = nullptr;
  KernelContext context;
  std::vector<const void*> inputs;  // what context points at
  std::vector<void*> outputs;
  int32_t launch = kNone;  // index into Plan::launches
  bool ranged = false;     // within an NvtxRange
  bool aside = false;      // Launch::aside
  // The launch aside that this launch has to wait for, by its index in the variant: the last one before it that uses
  // the same memory. It is kNone if there is none, if an earlier launch waits for it, or for a launch that is aside
  // itself.
  int32_t after = kNone;
  std::shared_ptr<const MemoryUse> use;  // in builds for ThreadSanitizer: what it has to know

  void run() const { run_on(context.stream); }
  void run_on(void* stream) const;  // throws RunError that names the node
};

struct BoundCopy {
  void* to = nullptr;
  const void* from = nullptr;
  int64_t bytes = 0;
};

// "Before instance i of this task, the queue waits for an instance of another": an Issued edge from another lane.
struct BoundWait {
  TaskId from = kNone;
  Edge edge;  // distance and relation
};

// Chooses among a task's variants by the slots of the buffers of one clock.
struct SlotChoice {
  enum class Tick : uint8_t { Same, Coarser, Finer };  // the buffers' clock compared with the task's
  Tick tick = Tick::Same;
  ClockRelation relation;
  int64_t slots = 1;

  int64_t slot(int64_t instance) const {
    switch (tick) {
      case Tick::Same: break;
      case Tick::Coarser: return relation.coarse_of(instance) % slots;
      case Tick::Finer: return relation.last_of(instance) % slots;
    }
    return instance % slots;
  }
};

// A device task made ready to run.
struct BoundTask {
  struct Variant {
    std::vector<BoundCopy> copies;
    std::vector<BoundLaunch> launches;
  };
  TaskId id = kNone;
  std::vector<Variant> variants;  // one for each combination of slots; if `every` is above 1, an empty one at the end
  std::vector<SlotChoice> choices;
  std::vector<BoundWait> waits;
  int32_t every = 1;     // as the task's
  bool capture = false;  // variants may be recorded and replayed as a whole
  // Number of latest instances whose ends can be distinguished. It is at least what the leads of its edges require, and
  // enough for a host that issues ahead of the ends that it has seen.
  int32_t events = 16;

  size_t variant_of(int64_t instance) const {
    if (!has_work(instance, every)) return variants.size() - 1;
    int64_t index = 0;
    for (const SlotChoice& choice : choices) index = index * choice.slots + choice.slot(instance);
    return size_t(index);
  }
};

// Receives completions. Each device calls it from its own thread, in order per task. Times are in ns of the trace's
// clock, or −1 without a trace. On a GPU, `started` is the time at which the instance was issued.
class CompletionSink {
 public:
  virtual ~CompletionSink() = default;
  virtual void completed(TaskId task, int64_t instance, int64_t started, int64_t ended) = 0;
  virtual void failed(TaskId task, int64_t instance, std::exception_ptr error) = 0;
};

// A device, or the host, has less memory free than a plan needs.
class LacksMemory : public RunError {
 public:
  using RunError::RunError;
};

// An error of a device that cannot be attributed to one task of several under way. The sink gets it with the first of
// them; `besides` holds the others.
class DeviceError : public RunError {
 public:
  using Instances = std::vector<std::pair<TaskId, int64_t>>;
  DeviceError(const std::string& message, Instances besides) : RunError(message), besides(std::move(besides)) {}
  Instances besides;
};

// How long issued work may take to end once a run is over: one deadline for all queues of the run.
inline constexpr std::chrono::seconds kDrainTime{5};
using Deadline = std::chrono::steady_clock::time_point;
inline Deadline drain_deadline() {
  return std::chrono::steady_clock::now() + kDrainTime;
}

// In-order queues and what works through them: a device's own, or those of collectives, which span devices.
class Queues {
 public:
  virtual ~Queues() = default;

  // An in-order queue; `lane` numbers the plan's lanes.
  virtual void make_queue(LaneId lane, Lane::Kind kind) = 0;
  virtual DeviceContext* context(LaneId lane) = 0;  // for making kernels
  virtual void* stream(LaneId lane) = 0;            // cudaStream_t; nullptr on CPUs
  // Runs something that needs the device's thread, such as making and timing kernels; here, once a run is over. On GPUs
  // several threads may call it at the same time.
  virtual void run_there(const std::function<void()>& function) = 0;

  // From here on tasks may be issued. `tasks` outlives the run; plan and trace too (trace may be nullptr).
  virtual void start(const Plan& plan, const Table<TaskId, BoundTask>& tasks, CompletionSink& sink,
                     TraceRecorder* trace) = 0;
  // Before start(): counts this many instances of each task as ended, if a run goes on from an earlier one.
  virtual void go_on_from(const Table<TaskId, int64_t>&) {}
  // Puts instance `instance` of a task into its lane's queue, with the waits of its edges before it. Never blocks.
  virtual void issue(const BoundTask& task, int64_t instance) = 0;
  // Another device completed something that a queue here may wait for.
  virtual void wake() {}
  // Work of a thread of the queues itself.
  struct Executing {
    TaskId task = kNone;
    const BoundLaunch* launch = nullptr;  // under way; nullptr: none is, or another one has begun meanwhile
    int64_t begun = 0;                    // launches so far
  };
  // Task kNone for GPUs, which work by themselves, and for collectives. Any thread asks.
  virtual Executing executing() const { return {}; }
  // Processor time of the threads that work at tasks themselves, in ns, without those that they start for their kernels
  // and those of libraries; 0 for GPUs. Any thread asks.
  virtual int64_t worked() const { return 0; }
  // Called once after the first error of a run, before stop(): instances under way may then never end by themselves.
  virtual void abort() {}
  // Ends the queues' threads once everything issued has ended, or at the deadline if something never ends.
  virtual void stop(Deadline until) = 0;
  // After stop(): true if something has not ended, so that freeing the memory it uses would wait for ever.
  virtual bool under_way() const { return false; }
};

class Device : public Queues {
 public:
  // Returns memory that is aligned to 256 bytes and zeroed. Throws RunError, with the amount, if there is not enough.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void* allocate_pinned(int64_t bytes) = 0;                      // host memory for this device's copies
  virtual std::shared_ptr<std::byte> allocate_kept(int64_t bytes) = 0;   // may outlive the device
  virtual void upload(void* to, const void* from, int64_t bytes) = 0;    // synchronous; before and after a run
  virtual void download(void* to, const void* from, int64_t bytes) = 0;  // the same
  virtual int64_t free_bytes() const = 0;
  // Bytes of the device's memory that have been taken since this DeviceCache made its first device, after the CUDA
  // context was created. They include allocations, the code and buffers of libraries, CUDA graphs, and memory of other
  // processes. −1 if unknown.
  virtual int64_t taken_bytes() const { return -1; }
  // After a run: ns that a task's work takes while nothing else runs on the device; −1 if it cannot be measured. Runs
  // the work again, so the values that the task writes are no longer valid.
  virtual int64_t time_alone(const BoundTask&) { return -1; }
  // After a run: ns of each of these launches, bound to `lane` and run one after the other: the median of some passes.
  // GPUs record the launches as a CUDA graph, so that no launch waits for the host.
  virtual std::vector<int64_t> time_launches(LaneId lane, const std::vector<BoundLaunch>& launches) = 0;
};

// The median of each list; no list may be empty.
inline std::vector<int64_t> medians(std::vector<std::vector<int64_t>> times) {
  std::vector<int64_t> middle;
  for (std::vector<int64_t>& each : times) {
    std::nth_element(each.begin(), each.begin() + int64_t(each.size() / 2), each.end());
    middle.push_back(each[each.size() / 2]);
  }
  return middle;
}

// `threads`: number of threads for the device's kernels. CPU devices share `progress`, by which tasks wait for tasks of
// other CPU devices.
struct CpuProgress;
std::shared_ptr<CpuProgress> make_cpu_progress(size_t tasks);
std::unique_ptr<Device> make_cpu_device(int index, int threads, std::shared_ptr<CpuProgress> progress);
// Collectives over CPU devices of several processes, whose plan `part` is this one's part of. Throws RunError if the
// ranks cannot be connected.
class Ranks;
std::unique_ptr<Queues> make_rank_collectives(std::shared_ptr<Ranks> ranks, const Plan& part,
                                              std::shared_ptr<CpuProgress> progress);

// State that successive plans on the same devices share: kernels already found, connections between GPUs.
struct DeviceCache;
std::shared_ptr<DeviceCache> make_device_cache();

// Throws RunError if CUDA or the device is missing. Devices of one run share `events`. A task that hangs for longer
// than the limit of `calls` fails (HangWatch), and so does a call that does not return; `calls` outlives the device.
struct CudaEvents;
std::shared_ptr<CudaEvents> make_cuda_events(size_t tasks);
std::unique_ptr<Device> make_cuda_device(int index, std::shared_ptr<CudaEvents> events, CallWatch& calls,
                                         const std::shared_ptr<DeviceCache>& cache = make_device_cache());
// Collectives over a plan's GPUs through NCCL, one at a time, with the same limit. `ranks`: if the plan is the part of
// one of several processes, else nullptr. Throws RunError if NCCL cannot connect the devices.
std::unique_ptr<Queues> make_cuda_collectives(const Plan& plan, std::shared_ptr<Ranks> ranks,
                                              std::shared_ptr<CudaEvents> events, CallWatch& calls,
                                              const std::shared_ptr<DeviceCache>& cache = make_device_cache());
int cuda_device_count();  // 0 without CUDA, without a driver, or without a GPU
// How many of GPUs' kernels this process has timed engines for, since no earlier one had. Code of those that were not
// chosen stays in the device's memory.
int64_t timed_engines();
// ("cuda", "13.0"), ("driver", …), ("cudnn", …), ("nccl", …); empty without CUDA.
std::vector<std::pair<std::string, std::string>> cuda_versions();
// The same list, preceded by the versions of the libraries that kernels for CPUs are built with.
std::vector<std::pair<std::string, std::string>> library_versions();
// The model of a device: "NVIDIA H200", "AMD EPYC 9654 96-Core Processor"; without a name if it is unknown.
DeviceModel cuda_device_model(int index);
std::string cuda_bus_id(int index);  // "0000:1b:00.0"; "": no such device
std::string cpu_model();
// Whether the CPU multiplies bfloat16 by instructions of its own; true if that is not known.
bool cpu_has_bfloat16();

}  // namespace arbalest
