// A GPU as a device: a stream per lane, events between lanes, recorded (captured) steps, and one thread that polls for
// what has ended.

#include <cuda_runtime.h>
#include <fmt/format.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>

#include "executor/device.h"
#include "executor/trace.h"
#include "ops/cuda_context.h"

namespace arbalest {

// The events that tell how far each task has come: ring[instance mod ring.size()]. Recorded by the task's device,
// waited for by any.
struct CudaEvents {
  explicit CudaEvents(size_t tasks) : ring(tasks) {}
  std::vector<std::vector<cudaEvent_t>> ring;
};

std::shared_ptr<CudaEvents> make_cuda_events(size_t tasks) {
  return std::make_shared<CudaEvents>(tasks);
}

int cuda_device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::vector<std::pair<std::string, std::string>> cuda_versions() {
  int runtime = 0, driver = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);
  const auto text = [](int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); };
  const auto cudnn = int(cudnnGetVersion());
  return {{"cuda", text(runtime)},
          {"driver", text(driver)},
          {"cudnn", fmt::format("{}.{}.{}", cudnn / 10000, cudnn % 10000 / 100, cudnn % 100)}};
}

namespace {

constexpr size_t kPendingCapacity = 256;  // instances issued and not yet ended, per lane
constexpr int kEagerRuns = 2;             // before a variant is recorded: libraries load modules at first use
constexpr int kPausesBetweenLooks = 256;  // about 10 µs: queries take the driver's lock, which issuing wants
constexpr auto kDrainBound = std::chrono::seconds(10);

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

struct Pending {
  TaskId task = kNone;
  int64_t instance = 0;
  cudaEvent_t started = nullptr, ended = nullptr;
};

// One lane: its stream, its kernels' handles, and what it has under way.
struct Stream {
  cudaStream_t stream = nullptr;
  std::unique_ptr<CudaContext> context;
  std::mutex mutex;  // waits, work and record of an instance stay together
  std::vector<Pending> pending = std::vector<Pending>(kPendingCapacity);
  std::atomic<uint64_t> head{0}, tail{0};
};

// Recorded work of one task, a graph per variant.
struct Recording {
  std::vector<cudaGraphExec_t> graph;
  std::vector<int> runs;
};

class CudaDevice final : public Device {
 public:
  CudaDevice(int index, std::shared_ptr<CudaEvents> events) : index_(index), events_(std::move(events)) {
    const int present = cuda_device_count();
    if (index >= present) {
      throw RunError(
          fmt::format("cuda:{} is not there: {} CUDA device{} found", index, present, present == 1 ? "" : "s"));
    }
    enter();
  }

  ~CudaDevice() override {
    stop();
    cudaSetDevice(index_);
    for (const cudaEvent_t event : owned_events_) cudaEventDestroy(event);
    if (clock_stream_) cudaStreamDestroy(clock_stream_);
    for (Recording& recording : recordings_) {
      for (const cudaGraphExec_t graph : recording.graph) {
        if (graph) cudaGraphExecDestroy(graph);
      }
    }
    for (auto& stream : streams_) {
      if (!stream) continue;
      stream->context.reset();
      cudaStreamDestroy(stream->stream);
    }
    for (void* memory : memory_) cudaFree(memory);
    for (void* memory : pinned_) cudaFreeHost(memory);
  }

  void* allocate(int64_t bytes) override {
    if (bytes == 0) return nullptr;
    enter();
    void* memory = nullptr;
    if (cudaMalloc(&memory, size_t(bytes)) != cudaSuccess) {
      cudaGetLastError();
      throw RunError(fmt::format("cuda:{}: {:.1f} MiB of memory are not to be had; {:.1f} MiB are free", index_,
                                 double(bytes) / (1 << 20), double(free_bytes()) / (1 << 20)));
    }
    memory_.push_back(memory);
    CUDA_CHECK(cudaMemset(memory, 0, size_t(bytes)));
    CUDA_CHECK(cudaDeviceSynchronize());
    return memory;
  }

  void* allocate_pinned(int64_t bytes) override {
    if (bytes == 0) return nullptr;
    enter();
    void* memory = nullptr;
    CUDA_CHECK(cudaHostAlloc(&memory, size_t(bytes), cudaHostAllocPortable));
    pinned_.push_back(memory);
    std::memset(memory, 0, size_t(bytes));
    return memory;
  }

  void upload(void* to, const void* from, int64_t bytes) override {
    enter();
    CUDA_CHECK(cudaMemcpy(to, from, size_t(bytes), cudaMemcpyHostToDevice));
    CUDA_CHECK(cudaDeviceSynchronize());
  }
  void download(void* to, const void* from, int64_t bytes) override {
    enter();
    CUDA_CHECK(cudaDeviceSynchronize());
    CUDA_CHECK(cudaMemcpy(to, from, size_t(bytes), cudaMemcpyDeviceToHost));
  }
  int64_t free_bytes() const override {
    size_t free = 0, total = 0;
    cudaSetDevice(index_);
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? int64_t(free) : 0;
  }

  void make_queue(LaneId lane, Lane::Kind kind) override {
    enter();
    if (size_t(lane) >= streams_.size()) streams_.resize(size_t(lane) + 1);
    auto stream = std::make_unique<Stream>();
    // Validation fills what training leaves free.
    int least = 0, greatest = 0;
    CUDA_CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    const int priority = kind == Lane::Kind::Validate ? least : greatest;
    CUDA_CHECK(cudaStreamCreateWithPriority(&stream->stream, cudaStreamNonBlocking, priority));
    if (kind == Lane::Kind::Compute || kind == Lane::Kind::Validate) {
      stream->context = std::make_unique<CudaContext>(index_);
    }
    streams_[size_t(lane)] = std::move(stream);
  }
  DeviceContext* context(LaneId lane) override { return streams_[size_t(lane)]->context.get(); }
  void* stream(LaneId lane) override { return streams_[size_t(lane)]->stream; }
  void run_there(const std::function<void()>& function) override {
    enter();
    function();
  }

  void start(const Plan& plan, const std::vector<BoundTask>& tasks, CompletionSink& sink,
             TraceRecorder* trace) override {
    enter();
    plan_ = &plan;
    sink_ = &sink;
    trace_ = trace;
    recordings_.resize(plan.tasks.size());
    started_events_.resize(plan.tasks.size());
    for (const BoundTask& task : tasks) {
      if (plan.tasks[size_t(task.id)].device == kNone || plan.on_host(task.id) || !own(task.id)) continue;
      recordings_[size_t(task.id)] = {std::vector<cudaGraphExec_t>(task.variants.size()),
                                      std::vector<int>(task.variants.size())};
      events_->ring[size_t(task.id)] = make_events(size_t(task.events));
      if (trace) started_events_[size_t(task.id)] = make_events(size_t(task.events));
    }
    if (trace) {
      CUDA_CHECK(cudaStreamCreateWithFlags(&clock_stream_, cudaStreamNonBlocking));
      for (cudaEvent_t& origin : origin_) {
        CUDA_CHECK(cudaEventCreate(&origin));
        owned_events_.push_back(origin);
      }
      record_origin();
      origin_ns_ = origin_age_ = trace->now();
    }
    poller_ = std::thread([this] {
      try {
        poll();
      } catch (...) {
        sink_->failed(kNone, -1, std::current_exception());
      }
    });
  }

  void issue(const BoundTask& task, int64_t instance) override {
    enter();
    Stream& lane = *streams_[size_t(plan_->tasks[size_t(task.id)].lane)];
    const std::scoped_lock lock(lane.mutex);
    for (const BoundWait& wait : task.waits) {
      const int64_t needed = needed_instance(*plan_, wait.edge, instance);
      // The instance before has waited for the same one already, in this stream.
      const bool waited = instance > 0 && needed_instance(*plan_, wait.edge, instance - 1) == needed;
      if (needed < 0 || waited) continue;
      const auto& ring = events_->ring[size_t(wait.from)];
      CUDA_CHECK(cudaStreamWaitEvent(lane.stream, ring[size_t(needed) % ring.size()], 0));
    }
    const auto& ring = events_->ring[size_t(task.id)];
    const size_t place = size_t(instance) % ring.size();
    cudaEvent_t started = nullptr;
    if (trace_) {
      started = started_events_[size_t(task.id)][place];
      CUDA_CHECK(cudaEventRecord(started, lane.stream));
    }
    run(task, instance, lane.stream);
    CUDA_CHECK(cudaEventRecord(ring[place], lane.stream));
    push(lane, {task.id, instance, started, ring[place]});
  }

  void stop() override {
    if (!poller_.joinable()) return;
    stopping_.store(true);
    issued_.fetch_add(1);
    issued_.notify_one();
    poller_.join();
  }

 private:
  void enter() const { CUDA_CHECK(cudaSetDevice(index_)); }

  bool own(TaskId task) const {
    const PlanDevice& device = plan_->devices[size_t(plan_->tasks[size_t(task)].device)];
    return device.kind == PlanDevice::Kind::Cuda && device.index == index_;
  }

  void record_origin() {
    CUDA_CHECK(cudaEventRecord(origin_[0], clock_stream_));
    CUDA_CHECK(cudaEventSynchronize(origin_[0]));
  }

  // Elapsed times are floats of milliseconds: near enough to the origin, they are good to some ten nanoseconds.
  void advance_origin() {
    constexpr int64_t kNearEnough = 200'000'000;  // ns
    if (!trace_ || trace_->now() - origin_age_ < kNearEnough) return;
    std::swap(origin_[0], origin_[1]);
    record_origin();
    float milliseconds = 0;
    CUDA_CHECK(cudaEventElapsedTime(&milliseconds, origin_[1], origin_[0]));
    origin_ns_ += int64_t(double(milliseconds) * 1e6);
    origin_age_ = trace_->now();
  }

  std::vector<cudaEvent_t> make_events(size_t count) {
    std::vector<cudaEvent_t> events(count);
    for (cudaEvent_t& event : events) {
      CUDA_CHECK(cudaEventCreateWithFlags(&event, trace_ ? cudaEventDefault : cudaEventDisableTiming));
      owned_events_.push_back(event);
    }
    return events;
  }

  void run(const BoundTask& task, int64_t instance, cudaStream_t stream) {
    const size_t index = size_t(instance) % task.variants.size();
    const BoundTask::Variant& variant = task.variants[index];
    Recording& recording = recordings_[size_t(task.id)];
    if (!task.capture) return run_eagerly(variant, stream);
    if (recording.graph[index]) {
      CUDA_CHECK(cudaGraphLaunch(recording.graph[index], stream));
      return;
    }
    if (recording.runs[index]++ < kEagerRuns) return run_eagerly(variant, stream);
    cudaGraph_t graph = nullptr;
    CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    try {
      run_eagerly(variant, stream);
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);
      if (graph) cudaGraphDestroy(graph);
      throw;
    }
    CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    CUDA_CHECK(cudaGraphInstantiate(&recording.graph[index], graph, 0));
    cudaGraphDestroy(graph);
    CUDA_CHECK(cudaGraphLaunch(recording.graph[index], stream));
  }

  static void run_eagerly(const BoundTask::Variant& variant, cudaStream_t stream) {
    for (const BoundCopy& copy : variant.copies) {
      CUDA_CHECK(cudaMemcpyAsync(copy.to, copy.from, size_t(copy.bytes), cudaMemcpyDefault, stream));
    }
    for (const BoundLaunch& launch : variant.launches) launch.run();
  }

  void push(Stream& lane, const Pending& pending) {
    const uint64_t tail = lane.tail.load(std::memory_order_relaxed);
    if (tail - lane.head.load(std::memory_order_acquire) == kPendingCapacity) {
      throw RunError(fmt::format("cuda:{}: more than {} instances under way in one lane", index_, kPendingCapacity));
    }
    lane.pending[tail % kPendingCapacity] = pending;
    lane.tail.store(tail + 1, std::memory_order_release);
    issued_.fetch_add(1, std::memory_order_release);
    issued_.notify_one();
  }

  // Looks at the oldest instance of every lane, again and again while there is one; sleeps while there is none.
  void poll() {
    cudaSetDevice(index_);
    auto drain_until = std::chrono::steady_clock::time_point::max();
    for (;;) {
      const uint64_t seen = issued_.load(std::memory_order_acquire);
      bool busy = false;
      advance_origin();
      for (auto& lane : streams_) busy = (lane && poll_head(*lane)) || busy;
      if (stopping_.load(std::memory_order_relaxed)) {
        if (!busy) return;
        const auto now = std::chrono::steady_clock::now();
        if (drain_until == std::chrono::steady_clock::time_point::max()) drain_until = now + kDrainBound;
        if (broken_ || now > drain_until) return;
      }
      if (busy) {
        for (int i = 0; i < kPausesBetweenLooks; ++i) pause();
      } else if (!stopping_.load()) {
        issued_.wait(seen, std::memory_order_acquire);
      }
    }
  }

  // True while the lane has something under way.
  bool poll_head(Stream& lane) {
    uint64_t head = lane.head.load(std::memory_order_relaxed);
    while (head != lane.tail.load(std::memory_order_acquire)) {
      const Pending pending = lane.pending[head % kPendingCapacity];
      const cudaError_t state = cudaEventQuery(pending.ended);
      if (state == cudaErrorNotReady) return true;
      if (state != cudaSuccess) {
        broken_ = true;
        sink_->failed(pending.task, pending.instance,
                      std::make_exception_ptr(RunError(fmt::format("cuda:{}: {}", index_, cudaGetErrorString(state)))));
      }
      const int64_t started = time_of(pending.started), ended = pending.started ? time_of(pending.ended) : -1;
      lane.head.store(++head, std::memory_order_release);
      if (state == cudaSuccess) sink_->completed(pending.task, pending.instance, started, ended);
    }
    return false;
  }

  int64_t time_of(cudaEvent_t event) const {
    float milliseconds = 0;
    if (!event || cudaEventElapsedTime(&milliseconds, origin_[0], event) != cudaSuccess) return -1;
    return origin_ns_ + int64_t(double(milliseconds) * 1e6);
  }

  const int index_;
  std::shared_ptr<CudaEvents> events_;
  std::vector<std::unique_ptr<Stream>> streams_;  // by lane
  std::vector<Recording> recordings_;             // by task
  std::vector<std::vector<cudaEvent_t>> started_events_;
  std::vector<cudaEvent_t> owned_events_;
  std::vector<void*> memory_, pinned_;
  const Plan* plan_ = nullptr;
  CompletionSink* sink_ = nullptr;
  TraceRecorder* trace_ = nullptr;
  cudaStream_t clock_stream_ = nullptr;
  cudaEvent_t origin_[2] = {};  // the one in use, the one before
  int64_t origin_ns_ = 0;       // the trace's time at origin_[0]
  int64_t origin_age_ = 0;
  std::atomic<uint64_t> issued_{0};
  std::atomic<bool> stopping_{false};
  bool broken_ = false;
  std::thread poller_;
};

}  // namespace

std::unique_ptr<Device> make_cuda_device(int index, std::shared_ptr<CudaEvents> events) {
  return std::make_unique<CudaDevice>(index, std::move(events));
}

}  // namespace arbalest
