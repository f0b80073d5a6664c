// SPDX-License-Identifier: Apache-2.0

// A GPU as a device: a stream per lane, events between lanes, and recorded (captured) steps.

#include <cuda_runtime.h>
#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>

#include "base/setting.h"
#include "executor/devices/cuda_cache.h"
#include "executor/devices/cuda_poller.h"
#include "executor/devices/device_memory.h"
#include "executor/devices/hang_watch.h"
#include "executor/devices/nvml.h"
#include "executor/trace/trace_recorder.h"
#include "ops/cuda/convolution_choices.h"
#include "ops/cuda/cuda_context.h"
#include "ops/cuda/recorded_graph.h"
#include "ops/cuda/upload.h"

namespace arbalest {

int cuda_device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

int64_t timed_engines() {
  return ConvolutionChoices::of_process().timed();
}

std::vector<std::pair<std::string, std::string>> cuda_versions() {
  int runtime = 0, driver = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);
  const auto text = [](int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); };
  const auto three = [](int version) {
    return fmt::format("{}.{}.{}", version / 10000, version % 10000 / 100, version % 100);
  };
  int nccl = 0;
  ncclGetVersion(&nccl);
  return {{"cuda", text(runtime)},
          {"driver", text(driver)},
          {"cudnn", three(int(cudnnGetVersion()))},
          {"nccl", three(nccl)}};
}

DeviceModel cuda_device_model(int index) {
  try {
    return model_of_device(index);
  } catch (const RunError&) {
    cudaGetLastError();  // the next launch is not to blame
    return {};
  }
}

int64_t cuda_device_memory(int index) {
  cudaDeviceProp properties = {};
  return cudaGetDeviceProperties(&properties, index) == cudaSuccess ? int64_t(properties.totalGlobalMem) : -1;
}

std::string cuda_bus_id(int index) {
  char id[32] = {};
  return cudaDeviceGetPCIBusId(id, int(sizeof id), index) == cudaSuccess ? id : "";
}

std::shared_ptr<DeviceCache> make_device_cache() {
  return std::make_shared<DeviceCache>();
}

namespace {

constexpr int kTries = 3;  // at recording a variant, which runs launch by launch until one succeeds

// One lane: its stream, and what it has under way.
struct Stream {
  cudaStream_t stream = nullptr;
  cudaStream_t branch = nullptr;   // for launches aside; nullptr: there are none
  cudaEvent_t forked = nullptr;    // where the branch begins
  std::vector<cudaEvent_t> aside;  // ends of launches aside, by their place
  std::mutex mutex;                // waits, work and record of an instance stay together
  CudaPoller::Pending pending;
  CallWatch::Caller& caller;  // who holds the mutex

  explicit Stream(CallWatch::Caller& caller) : caller(caller) {}
};

// Recorded work of one task, by variant.
struct Recording {
  std::vector<RecordedGraph> recorded;
  std::vector<int> tries;
};

class CudaDevice final : public Device {
  using Instance = CudaPoller::Pending::Instance;

 public:
  CudaDevice(int index, std::shared_ptr<CudaEvents> events, CallWatch& calls,
             const std::shared_ptr<DeviceCache>& shared)
      : index_(index),
        calls_(calls),
        caller_(calls.add({name()})),
        events_(std::move(events)),
        shared_{shared, {}, {}} {
    DeviceCache& cache = *shared;
    const int present = cuda_device_count();
    if (index >= present) {
      throw RunError(
          fmt::format("cuda:{} is not there: {} CUDA device{} found", index, present, present == 1 ? "" : "s"));
    }
    make_context();
    free_at_first_ = cache.free_bytes.try_emplace(index, free_bytes()).first->second;
    std::shared_ptr<CudaContext>& ours = cache.contexts[index];
    if (!ours) ours = std::make_shared<CudaContext>(index);
    shared_.context = ours;
    std::shared_ptr<std::mutex>& recording = cache.recording[index];
    if (!recording) recording = std::make_shared<std::mutex>();
    shared_.recording = recording;
  }

  ~CudaDevice() override {
    stop(drain_deadline());
    cudaSetDevice(index_);
    for (Recording& recording : recordings_) {
      const CallWatch::Call call(caller_);
      recording.recorded.clear();
    }
    for (auto& stream : streams_) {
      if (!stream) continue;
      const CallWatch::Call call(caller_);
      if (stream->branch != nullptr) cudaStreamDestroy(stream->branch);
      cudaStreamDestroy(stream->stream);
    }
    for (void* memory : taken_.memory) {
      const CallWatch::Call call(caller_);
      cudaFree(memory);
    }
    for (void* memory : taken_.pinned) {
      const CallWatch::Call call(caller_);
      cudaFreeHost(memory);
    }
  }

  void* allocate(int64_t bytes) override {
    if (bytes == 0) return nullptr;
    const CallWatch::Call call(caller_);
    void* memory = take_memory(bytes);
    taken_.memory.push_back(memory);
    set_zero(memory, bytes);
    return memory;
  }

  std::shared_ptr<std::byte> allocate_kept(int64_t bytes) override {
    if (bytes == 0) return nullptr;
    const CallWatch::Call call(caller_);
    std::shared_ptr<std::byte> memory(static_cast<std::byte*>(take_memory(bytes)), [index = index_](std::byte* kept) {
      cudaSetDevice(index);
      cudaFree(kept);
    });
    set_zero(memory.get(), bytes);
    return memory;
  }

  void* allocate_pinned(int64_t bytes) override {
    if (bytes == 0) return nullptr;
    enter();
    void* memory = nullptr;
    if (cudaHostAlloc(&memory, size_t(bytes), cudaHostAllocPortable) != cudaSuccess) {
      cudaGetLastError();
      throw LacksMemory(
          fmt::format("cuda:{}: cannot allocate {:.1f} MiB of the host's memory, which the GPU reads from", index_,
                      double(bytes) / (1 << 20)));
    }
    taken_.pinned.push_back(memory);
    std::memset(memory, 0, size_t(bytes));
    return memory;
  }

  void upload(void* to, const void* from, int64_t bytes) override {
    const CallWatch::Call call(caller_);
    enter();
    arbalest::upload(to, from, size_t(bytes));
  }
  void download(void* to, const void* from, int64_t bytes) override {
    const CallWatch::Call call(caller_);
    enter();
    for (const auto& stream : streams_) {
      if (stream) CUDA_CHECK(cudaStreamSynchronize(stream->stream));
    }
    CUDA_CHECK(cudaMemcpy(to, from, size_t(bytes), cudaMemcpyDeviceToHost));
  }
  int64_t free_bytes() const override {
    size_t free = 0, total = 0;
    cudaSetDevice(index_);
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? int64_t(free) : 0;
  }

  int64_t taken_bytes() const override {
    const int64_t free = free_bytes();
    return free > 0 && free <= free_at_first_ ? free_at_first_ - free : -1;
  }

  void make_queue(LaneId lane, Lane::Kind kind) override {
    enter();
    if (size_t(lane) >= streams_.size()) streams_.resize(size_t(lane) + 1);
    auto stream = std::make_unique<Stream>(calls_.add({name()}));
    // Collectives (here and in CollectiveContext) have the highest priority, since work on other devices waits for them
    // too. Validation has the lowest: it uses the time that training leaves.
    int least = 0, greatest = 0;
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    const int priority = kind == Lane::Kind::Validate  ? least
                         : kind == Lane::Kind::Compute ? std::min(least, greatest + 1)
                                                       : greatest;
    CUDA_CHECK(cudaStreamCreateWithPriority(&stream->stream, cudaStreamNonBlocking, priority));
    streams_[lane] = std::move(stream);
  }
  DeviceContext* context(LaneId) override { return shared_.context.get(); }
  void* stream(LaneId lane) override { return streams_[lane]->stream; }
  void run_there(const std::function<void()>& function) override {
    enter();
    function();
  }

  void start(const Plan& plan, const Table<TaskId, BoundTask>& tasks, CompletionSink& sink,
             TraceRecorder* trace) override {
    enter();
    started_.plan = &plan;
    started_.tasks = &tasks;
    for (size_t d = 0; d < plan.devices.size(); ++d) {
      const PlanDevice& device = plan.devices[d];
      if (device.kind == PlanDevice::Kind::Cuda && device.index == index_) started_.place = int32_t(d);
    }
    started_.trace = trace;
    recordings_.resize(plan.tasks.size());
    for (const BoundTask& task : tasks) {
      if (plan.on_host(task.id) || !own(task.id)) continue;
      Recording& recording = recordings_[task.id];
      recording.recorded.resize(task.variants.size());
      recording.tries.resize(task.variants.size());
      make_branch(task, *streams_[plan.tasks[task.id].lane]);
      events_->ring[task.id].events = make_events(size_t(task.events));
    }
    std::vector<CudaPoller::Pending*> lanes;
    for (auto& stream : streams_) {
      if (stream) lanes.push_back(&stream->pending);
    }
    hang_.watches.assign(lanes.size(), HangWatch(HangWatch::Seconds(calls_.limit())));
    if (looking_ == nullptr) looking_ = &calls_.add({name()});
    poller_ = std::make_unique<CudaPoller>(
        std::vector{name()}, index_, std::move(lanes),
        CudaPoller::Watched{
            sink, trace, *looking_,
            [this](size_t lane, const Instance& oldest, bool progress) { check(lane, oldest, progress); }},
        shared_.cache->polling_thread(index_));
  }

  void issue(const BoundTask& task, int64_t instance) override {
    Stream& lane = *streams_[started_.plan->tasks[task.id].lane];
    const std::scoped_lock lock(lane.mutex);
    CudaEvents::Ring& ring = events_->ring[task.id];
    events_->issue_one_more(ring);
    const CallWatch::Call call(lane.caller, task.id, instance);
    enter();
    for (const BoundWait& wait : task.waits) {
      const int64_t needed = needed_instance(*started_.plan, wait.edge, instance);
      // The instance before has waited for the same one already, in this stream.
      const bool waited = instance > 0 && needed_instance(*started_.plan, wait.edge, instance - 1) == needed;
      if (needed < 0 || waited) continue;
      CUDA_CHECK(cudaStreamWaitEvent(lane.stream, events_->of(wait.from, needed, started_.place), 0));
    }
    run(task, instance, lane);
    CUDA_CHECK(cudaEventRecord(*ring.of(instance), lane.stream));
    poller_->push(lane.pending, {task.id, instance, started_.trace ? started_.trace->now() : -1, &ring});
  }

  void abort() override { events_->failed = true; }

  void stop(Deadline until) override {
    if (poller_) poller_->stop(hang_.found ? Deadline() : until);
  }
  bool under_way() const override { return poller_ && poller_->under_way(); }

  int64_t time_alone(const BoundTask& task) override {
    constexpr int kRepeats = 5;
    enter();
    const std::vector<RecordedGraph>& variants = recordings_[task.id].recorded;
    const auto variant =
        std::find_if(variants.begin(), variants.end(), [](const RecordedGraph& v) { return v.graph(); });
    if (variant == variants.end()) return -1;
    const cudaStream_t stream = streams_[started_.plan->tasks[task.id].lane]->stream;
    CudaEventList list;
    const cudaEvent_t from = list.add(true), to = list.add(true);
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaGraphLaunch(variant->graph(), stream));
    CUDA_CHECK(cudaEventRecord(from, stream));
    for (int i = 0; i < kRepeats; ++i) CUDA_CHECK(cudaGraphLaunch(variant->graph(), stream));
    CUDA_CHECK(cudaEventRecord(to, stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
    float milliseconds = 0;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, from, to));
    return int64_t(double(milliseconds) * 1e6 / kRepeats);
  }

  std::vector<int64_t> time_launches(LaneId lane, const std::vector<BoundLaunch>& launches) override {
    constexpr int kPasses = 7;
    enter();
    const cudaStream_t stream = streams_[lane]->stream;
    CUDA_CHECK(cudaDeviceSynchronize());
    for (const BoundLaunch& launch : launches) launch.run_on(stream);  // first uses
    CudaEventList list;
    std::vector<cudaEvent_t> marks;
    for (size_t i = 0; i <= launches.size(); ++i) marks.push_back(list.add(true));
    const auto mark = [&](size_t i) {
      CUDA_CHECK(cudaEventRecordWithFlags(marks[i], stream, cudaEventRecordExternal));
    };
    RecordedGraph recorded;
    recorded.record(stream, [&] {
      mark(0);
      for (size_t i = 0; i < launches.size(); ++i) {
        launches[i].run_on(stream);
        mark(i + 1);
      }
    });
    std::vector<std::vector<int64_t>> times(launches.size());
    for (int pass = 0; pass < kPasses; ++pass) {
      CUDA_CHECK(cudaGraphLaunch(recorded.graph(), stream));
      CUDA_CHECK(cudaStreamSynchronize(stream));
      for (size_t i = 0; i < launches.size(); ++i) {
        float milliseconds = 0;
        CUDA_CHECK(cudaEventElapsedTime(&milliseconds, marks[i], marks[i + 1]));
        times[i].push_back(int64_t(double(milliseconds) * 1e6));
      }
    }
    return medians(std::move(times));
  }

 private:
  std::string name() const { return fmt::format("cuda:{}", index_); }
  void enter() const { CUDA_CHECK(cudaSetDevice(index_)); }

  void* take_memory(int64_t bytes) const {
    enter();
    void* memory = nullptr;
    if (cudaMalloc(&memory, size_t(bytes)) != cudaSuccess) {
      cudaGetLastError();
      throw LacksMemory(fmt::format("cuda:{}: cannot allocate {:.1f} MiB of memory; {:.1f} MiB are free", index_,
                                    double(bytes) / (1 << 20), double(free_bytes()) / (1 << 20)));
    }
    return memory;
  }
  // Recorded, since what is not takes launch memory: docs/design.md.
  void set_zero(void* memory, int64_t bytes) const {
    constexpr int64_t kMost = 1 << 30;  // bytes of one call
    const cudaStream_t stream = shared_.context->stream;
    RecordedGraph zeros;
    zeros.record(stream, [&] {
      for (int64_t from = 0; from < bytes; from += kMost) {
        const int64_t count = std::min(kMost, bytes - from);
        CUDA_CHECK(cudaMemsetAsync(static_cast<std::byte*>(memory) + from, 0, size_t(count), stream));
      }
    });
    CUDA_CHECK(cudaGraphLaunch(zeros.graph(), stream));
    CUDA_CHECK(cudaStreamSynchronize(stream));
  }

  // The first call for a device makes CUDA's context there, which takes some hundred MiB of its memory.
  void make_context() const {
    const cudaError_t state = cudaSetDevice(index_);
    if (state == cudaErrorMemoryAllocation) {
      throw RunError(fmt::format("cuda:{}: too little of its memory is free for CUDA's context{}", index_, in_use()));
    }
    CUDA_CHECK(state);
  }

  // "": NVML does not tell.
  std::string in_use() const {
    char bus_id[32];
    if (cudaDeviceGetPCIBusId(bus_id, sizeof bus_id, index_) != cudaSuccess) return "";
    try {
      const Nvml nvml;
      for (const Gauge& gauge : nvml.gauges(bus_id)) {
        const std::optional<double> used = gauge.unit == "B" ? gauge.read() : std::nullopt;
        if (used) return fmt::format(": {:.0f} of {:.0f} MiB are in use", *used / (1 << 20), gauge.most / (1 << 20));
      }
    } catch (const RunError&) {
    }
    return "";
  }

  // The polling thread's.
  void check(size_t lane, const Instance& oldest, bool progress) {
    const HangWatch::Look look{
        .task = oldest.task, .instance = oldest.instance, .ready = inputs_ready(oldest), .progress = progress};
    if (!hang_.watches[lane].hangs(look, std::chrono::steady_clock::now())) return;
    hang_.found = true;
    throw RunError(
        fmt::format("cuda:{}: has not ended for {:g} s, with its inputs ready; where it may take so long, raise {}",
                    index_, calls_.limit(), name_of(SettingKey::DeviceTimeout)));
  }

  // True if everything that the instance waits for has ended. The events that it waits for are not reused before it
  // ends, because the plan keeps the tasks that record them from running ahead.
  bool inputs_ready(const Instance& instance) const {
    const std::vector<BoundWait>& waits = (*started_.tasks)[instance.task].waits;
    return std::all_of(waits.begin(), waits.end(), [&](const BoundWait& wait) {
      const int64_t needed = needed_instance(*started_.plan, wait.edge, instance.instance);
      return needed < 0 || cudaEventQuery(events_->of(wait.from, needed, started_.place)) != cudaErrorNotReady;
    });
  }

  bool own(TaskId task) const { return started_.plan->tasks[task].device == started_.place; }

  std::vector<cudaEvent_t> make_events(size_t count) {
    std::vector<cudaEvent_t> events(count);
    for (cudaEvent_t& event : events) event = event_list_.add(started_.trace != nullptr);
    return events;
  }

  void run(const BoundTask& task, int64_t instance, Stream& lane) {
    const size_t index = task.variant_of(instance);
    const BoundTask::Variant& variant = task.variants[index];
    Recording& recording = recordings_[task.id];
    RecordedGraph& recorded = recording.recorded[index];
    if (recorded.graph() == nullptr) {
      const bool records = task.capture && !variant.launches.empty();
      int& tries = recording.tries[index];
      if (!records && tries > 0) return run_eagerly(variant, lane);
      const CallWatch::Loading loading(lane.caller);
      const std::scoped_lock lock(*shared_.recording);
      ++tries;
      if (!records || !record(variant, lane, recorded, tries == kTries)) return run_eagerly(variant, lane);
    }
    CUDA_CHECK(cudaGraphLaunch(recorded.graph(), lane.stream));
  }

  // Before anything runs launch by launch, which takes launch memory: docs/design.md. False: a library does something
  // at its first use that cannot be recorded.
  static bool record(const BoundTask::Variant& variant, Stream& lane, RecordedGraph& recorded, bool last_try) {
    try {
      recorded.record(lane.stream, [&] { run_eagerly(variant, lane); });
      return true;
    } catch (const RunError&) {
      if (last_try) throw;
      cudaGetLastError();
      return false;
    }
  }

  static void run_eagerly(const BoundTask::Variant& variant, Stream& lane) {
    for (const BoundCopy& copy : variant.copies) {
      CUDA_CHECK(cudaMemcpyAsync(copy.to, copy.from, size_t(copy.bytes), cudaMemcpyDefault, lane.stream));
    }
    size_t last = variant.launches.size();  // aside
    for (size_t i = 0; i < variant.launches.size(); ++i) {
      const BoundLaunch& launch = variant.launches[i];
      if (launch.aside) {
        run_aside(launch, lane, i);
        last = i;
        continue;
      }
      if (launch.after != kNone) CUDA_CHECK(cudaStreamWaitEvent(lane.stream, lane.aside[size_t(launch.after)], 0));
      launch.run_on(lane.stream);
    }
    if (last < variant.launches.size()) CUDA_CHECK(cudaStreamWaitEvent(lane.stream, lane.aside[last], 0));
  }

  // Creates the second stream and the events that the task's launches aside need.
  void make_branch(const BoundTask& task, Stream& lane) {
    for (const BoundTask::Variant& variant : task.variants) {
      for (size_t i = 0; i < variant.launches.size(); ++i) {
        if (!variant.launches[i].aside) continue;
        if (lane.branch == nullptr) {
          CUDA_CHECK(cudaStreamCreateWithFlags(&lane.branch, cudaStreamNonBlocking));
          lane.forked = event_list_.add(false);
        }
        if (lane.aside.size() <= i) lane.aside.resize(i + 1, nullptr);
        if (lane.aside[i] == nullptr) lane.aside[i] = event_list_.add(false);
      }
    }
  }

  // Runs a launch on the second stream, after everything issued before it. `place`: index of the launch in its variant.
  static void run_aside(const BoundLaunch& launch, Stream& lane, size_t place) {
    CUDA_CHECK(cudaEventRecord(lane.forked, lane.stream));
    CUDA_CHECK(cudaStreamWaitEvent(lane.branch, lane.forked, 0));
    launch.run_on(lane.branch);
    CUDA_CHECK(cudaEventRecord(lane.aside[place], lane.branch));
  }

  const int index_;
  int64_t free_at_first_ = 0;  // bytes, before all that its DeviceCache was used for
  CallWatch& calls_;
  CallWatch::Caller& caller_;             // of what is called before and after a run, and while it rests
  CallWatch::Caller* looking_ = nullptr;  // the poller's
  std::shared_ptr<CudaEvents> events_;
  struct Shared {  // with other plans
    std::shared_ptr<DeviceCache> cache;
    std::shared_ptr<CudaContext> context;
    std::shared_ptr<std::mutex> recording;  // DeviceCache::recording
  };
  Shared shared_;
  Table<LaneId, std::unique_ptr<Stream>> streams_;
  Table<TaskId, Recording> recordings_;
  CudaEventList event_list_;
  struct Taken {  // to be given back
    std::vector<void*> memory, pinned;
  };
  Taken taken_;
  struct Started {  // what start() was given
    const Plan* plan = nullptr;
    const Table<TaskId, BoundTask>* tasks = nullptr;
    TraceRecorder* trace = nullptr;
    int32_t place = 0;  // this device's in the plan
  };
  Started started_;
  struct Hang {
    std::vector<HangWatch> watches;  // by the poller's lanes
    std::atomic<bool> found{false};  // a task that will not end
  };
  Hang hang_;
  std::unique_ptr<CudaPoller> poller_;
};

}  // namespace

std::unique_ptr<Device> make_cuda_device(int index, std::shared_ptr<CudaEvents> events, CallWatch& calls,
                                         const std::shared_ptr<DeviceCache>& cache) {
  return std::make_unique<CudaDevice>(index, std::move(events), calls, cache);
}

}  // namespace arbalest
