// SPDX-License-Identifier: Apache-2.0

// A CPU as a device: in-order queues that one thread of its own works through. One thread, because oneDNN's and
// OpenMP's thread teams belong to the thread that calls them; the kernels run on the team.

#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <mutex>
#include <thread>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "base/memory/address_space.h"
#include "base/time/clock.h"
#include "executor/devices/device.h"
#include "executor/devices/device_memory.h"
#include "executor/devices/threads.h"
#include "executor/trace/trace_recorder.h"
#include "ops/idle_threads.h"
#include "ops/onednn/versions.h"

namespace arbalest {

// How many instances of each task have ended: what an event is on a GPU. Instances of a task end in order.
struct CpuProgress {
  explicit CpuProgress(size_t tasks) : ended(tasks) {}
  Table<TaskId, std::atomic<int64_t>> ended;
};

std::shared_ptr<CpuProgress> make_cpu_progress(size_t tasks) {
  return std::make_shared<CpuProgress>(tasks);
}

namespace {

struct Item {
  const BoundTask* task = nullptr;
  int64_t instance = 0;
};

constexpr size_t kRoom = 32;  // of a queue for each of its tasks; the plan's pace keeps far fewer under way

struct Queue {
  std::mutex mutex;         // several threads may issue
  std::vector<Item> items;  // issued and not yet ended
  std::atomic<uint64_t> head{0}, tail{0};
};

class CpuDevice final : public Device {
 public:
  CpuDevice(int index, int threads, std::shared_ptr<CpuProgress> progress)
      : index_(index),
        threads_(threads),
        idle_threads_(idle_threads(index, threads)),
        progress_(std::move(progress)),
        thread_(start_thread(fmt::format("the device cpu:{}", index), [this] { work(); })) {
    if (pthread_getcpuclockid(thread_.native_handle(), &clock_) != 0) clock_ = CLOCK_PROCESS_CPUTIME_ID;
    run_there([] { start_team(); });
  }

  ~CpuDevice() override {
    stop(drain_deadline());
    for (void* memory : memory_) std::free(memory);
  }

  void* allocate(int64_t bytes) override {
    if (bytes == 0) return nullptr;
    return memory_.emplace_back(zeros(bytes));
  }
  std::shared_ptr<std::byte> allocate_kept(int64_t bytes) override {
    return {static_cast<std::byte*>(zeros(bytes)), [](std::byte* memory) { std::free(memory); }};
  }
  void* allocate_pinned(int64_t bytes) override { return allocate(bytes); }
  void upload(void* to, const void* from, int64_t bytes) override { std::memcpy(to, from, size_t(bytes)); }
  void download(void* to, const void* from, int64_t bytes) override { std::memcpy(to, from, size_t(bytes)); }
  // Memory that the system can still provide (MemAvailable of /proc/meminfo); all CPU devices share it.
  int64_t free_bytes() const override {
    std::ifstream file("/proc/meminfo");
    for (std::string key, rest; file >> key && std::getline(file, rest);) {
      if (key == "MemAvailable:") return std::stoll(rest) * 1024;
    }
    return INT64_MAX;
  }

  // A thread of a kernel's team may share a core with one that spins until it has done its part. That costs a tick of
  // the system, 4 ms, in each of the first passes, until the system moves it.
  std::vector<int64_t> time_launches(LaneId, const std::vector<BoundLaunch>& launches) override {
    using Clock = std::chrono::steady_clock;
    constexpr size_t kFewest = 3, kMost = 101;
    constexpr std::chrono::milliseconds kLongest{300};  // after the fewest passes
    std::vector<std::vector<int64_t>> times(launches.size());
    run_there([&] {
      for (const BoundLaunch& launch : launches) launch.run();  // first uses
      const Clock::time_point end = Clock::now() + kLongest;
      for (size_t pass = 0; pass < kFewest || (pass < kMost && Clock::now() < end); ++pass) {
        for (size_t i = 0; i < launches.size(); ++i) {
          const Clock::time_point start = Clock::now();
          launches[i].run();
          times[i].push_back((Clock::now() - start) / std::chrono::nanoseconds(1));
        }
      }
    });
    return medians(std::move(times));
  }

  void make_queue(LaneId lane, Lane::Kind) override {
    if (size_t(lane) >= queue_of_lane_.size()) queue_of_lane_.resize(size_t(lane) + 1, nullptr);
    queues_.push_back(std::make_unique<Queue>());
    queue_of_lane_[lane] = queues_.back().get();
  }
  DeviceContext* context(LaneId) override { return nullptr; }
  void* stream(LaneId) override { return nullptr; }

  void run_there(const std::function<void()>& function) override {
    if (!thread_.joinable()) {  // after a run
      set_threads();
      return function();
    }
    std::exception_ptr error;
    const std::function<void()> guarded = [&] {
      try {
        function();
      } catch (...) {
        error = std::current_exception();
      }
    };
    orders_.request.store(&guarded);
    wake();
    std::unique_lock lock(orders_.mutex);
    orders_.answered.wait(lock, [this] { return !orders_.request.load(); });
    lock.unlock();
    if (error) std::rethrow_exception(error);
  }

  // CPU devices share the progress, so all of them of a run are passed the same numbers.
  void go_on_from(const Table<TaskId, int64_t>& instances) override {
    for (const TaskId task : instances.ids()) progress_->ended[task].store(instances[task]);
  }

  void start(const Plan& plan, const Table<TaskId, BoundTask>& tasks, CompletionSink& sink,
             TraceRecorder* trace) override {
    for (const BoundTask& task : tasks) {
      const LaneId lane = plan.tasks[task.id].lane;
      Queue* queue = queue_of_lane_.contains(lane) ? queue_of_lane_[lane] : nullptr;
      if (queue) queue->items.resize(queue->items.size() + size_t(task.events) + kRoom);
    }
    sink_ = &sink;
    trace_ = trace;
    plan_ = &plan;  // last: the thread looks at it first
    wake();
  }

  void issue(const BoundTask& task, int64_t instance) override {
    Queue& queue = *queue_of_lane_[plan_.load()->tasks[task.id].lane];
    {
      const std::scoped_lock lock(queue.mutex);
      const uint64_t tail = queue.tail.load(std::memory_order_relaxed);
      if (tail - queue.head.load(std::memory_order_acquire) == queue.items.size()) {
        throw RunError(fmt::format("cpu:{}: more than {} instances under way in one lane", index_, queue.items.size()));
      }
      queue.items[tail % queue.items.size()] = {&task, instance};
      queue.tail.store(tail + 1, std::memory_order_release);
    }
    wake();
  }

  void wake() override {
    {
      const std::scoped_lock lock(orders_.mutex);
      orders_.signal.fetch_add(1, std::memory_order_release);
    }
    orders_.given.notify_one();
  }

  Executing executing() const override {
    Executing found{executing_.task.load(), nullptr, executing_.begun.load()};
    const BoundLaunch* const launch = executing_.launch.load();
    if (found.task != kNone && executing_.begun.load() == found.begun) found.launch = launch;
    return found;
  }

  int64_t worked() const override { return clock_ns(clock_); }

  void stop(Deadline) override {
    if (!thread_.joinable()) return;
    orders_.stopping.store(true);
    wake();
    thread_.join();
  }

 private:
  // Aligned to 256 bytes.
  void* zeros(int64_t bytes) const {
    constexpr size_t kAlign = 256;
    void* memory = std::aligned_alloc(kAlign, (size_t(bytes) + kAlign - 1) / kAlign * kAlign);
    if (!memory) throw RunError(fmt::format("cpu:{}: cannot allocate {} bytes of memory", index_, bytes));
    std::memset(memory, 0, size_t(bytes));
    return memory;
  }

  // Sets the number of OpenMP threads of kernels that the calling thread runs.
  void set_threads() const {
#ifdef _OPENMP
    omp_set_num_threads(threads_);
#endif
  }

  // OpenMP ends the process if it cannot start a thread. So the threads of its teams are started here, after a check
  // that the system provides that many.
  static std::shared_ptr<void> idle_threads([[maybe_unused]] int index, [[maybe_unused]] int threads) {
    const AddressSpace room(size_t{64} << 20);  // for memory that threads take besides their stacks
#ifdef _OPENMP
    const int idle = omp_get_num_procs() + 1;  // those of let_idle_threads_sleep()
    expect_threads(idle + threads, fmt::format("kernels on cpu:{}", index));
#endif
    return let_idle_threads_sleep();
  }

  // Starts the OpenMP team of the calling thread.
  static void start_team() {
#ifdef _OPENMP
    std::atomic<int> members{0};  // without something to do the region would be left out
#pragma omp parallel
    members.fetch_add(1);
#endif
  }

  void work() {
    set_threads();
    for (;;) {
      const uint32_t seen = orders_.signal.load(std::memory_order_acquire);
      bool worked = false;
      if (const auto* request = orders_.request.load()) {
        (*request)();
        {
          const std::scoped_lock lock(orders_.mutex);
          orders_.request.store(nullptr);
        }
        orders_.answered.notify_one();
        worked = true;
      }
      if (plan_) {  // before start(), queues are still being made
        for (const auto& queue : queues_) worked = run_head(*queue) || worked;
      }
      if (worked) continue;
      if (orders_.stopping.load()) return;
      std::unique_lock lock(orders_.mutex);
      orders_.given.wait(lock, [&] { return orders_.signal.load(std::memory_order_relaxed) != seen; });
    }
  }

  // Runs the first item of a queue unless there is none or an edge holds it back.
  bool run_head(Queue& queue) {
    if (broken_) return false;  // what was issued after a failure is dropped
    const uint64_t head = queue.head.load(std::memory_order_relaxed);
    if (head == queue.tail.load(std::memory_order_acquire)) return false;
    const Item item = queue.items[head % queue.items.size()];
    for (const BoundWait& wait : item.task->waits) {
      const int64_t needed = needed_instance(*plan_, wait.edge, item.instance);
      if (progress_->ended[wait.from].load(std::memory_order_acquire) <= needed) return false;
    }
    const int64_t started = trace_ ? trace_->now() : -1;
    executing_.task.store(item.task->id, std::memory_order_relaxed);
    try {
      run(*item.task, item.instance);
    } catch (...) {
      executing_.task.store(kNone, std::memory_order_relaxed);
      queue.head.store(head + 1, std::memory_order_release);
      broken_ = true;
      sink_->failed(item.task->id, item.instance, std::current_exception());
      return true;
    }
    executing_.task.store(kNone, std::memory_order_relaxed);
    const int64_t ended = trace_ ? trace_->now() : -1;
    progress_->ended[item.task->id].store(item.instance + 1, std::memory_order_release);
    queue.head.store(head + 1, std::memory_order_release);
    sink_->completed(item.task->id, item.instance, started, ended);
    return true;
  }

  void run(const BoundTask& task, int64_t instance) {
    const BoundTask::Variant& variant = task.variants[task.variant_of(instance)];
    for (const BoundCopy& copy : variant.copies) std::memcpy(copy.to, copy.from, size_t(copy.bytes));
    for (const BoundLaunch& launch : variant.launches) {
      const int64_t started = trace_ ? trace_->now() : 0;
      executing_.launch.store(&launch, std::memory_order_relaxed);
      executing_.begun.store(executing_.begun.load(std::memory_order_relaxed) + 1, std::memory_order_release);
      launch.run();
      if (trace_) trace_->record(NodeSpan{launch.launch, task.id, instance, started, trace_->now()});
    }
  }

  const int index_;
  [[maybe_unused]] const int threads_;
  const std::shared_ptr<void> idle_threads_;
  std::shared_ptr<CpuProgress> progress_;
  std::vector<void*> memory_;
  std::vector<std::unique_ptr<Queue>> queues_;
  Table<LaneId, Queue*> queue_of_lane_;
  std::atomic<const Plan*> plan_{nullptr};
  CompletionSink* sink_ = nullptr;
  TraceRecorder* trace_ = nullptr;
  // Threads sleep on the conditions at once. std::atomic::wait() yields first, and each yield may cost a time slice of
  // other work on the machine.
  struct Orders {
    std::mutex mutex;
    std::condition_variable given, answered;
    std::atomic<uint32_t> signal{0};                             // changed under the mutex
    std::atomic<const std::function<void()>*> request{nullptr};  // set to nullptr under the mutex
    std::atomic<bool> stopping{false};
  } orders_;
  struct {
    std::atomic<TaskId> task{kNone};
    std::atomic<const BoundLaunch*> launch{nullptr};  // the latest
    std::atomic<int64_t> begun{0};
  } executing_;
  bool broken_ = false;  // the device thread's own
  std::thread thread_;   // last but its clock: it uses all of the above
  clockid_t clock_{};
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(int index, int threads, std::shared_ptr<CpuProgress> progress) {
  return std::make_unique<CpuDevice>(index, threads, std::move(progress));
}

#ifndef ARBALEST_CUDA
struct CudaEvents {};
std::shared_ptr<CudaEvents> make_cuda_events(size_t) {
  return nullptr;
}
struct DeviceCache {};
std::shared_ptr<DeviceCache> make_device_cache() {
  return nullptr;
}
std::unique_ptr<Device> make_cuda_device(int index, std::shared_ptr<CudaEvents>, CallWatch&,
                                         const std::shared_ptr<DeviceCache>&) {
  throw RunError(
      fmt::format("cuda:{}: this build has no CUDA; expected cpu:0, or a build with -Dcuda=enabled, which needs what "
                  "docs/building.md lists",
                  index));
}
std::unique_ptr<Queues> make_cuda_collectives(const Plan&, std::shared_ptr<Ranks>, std::shared_ptr<CudaEvents>,
                                              CallWatch&, const std::shared_ptr<DeviceCache>&) {
  throw RunError("collectives over GPUs: this build has no CUDA; expected one with -Dcuda=enabled");
}
int cuda_device_count() {
  return 0;
}
int64_t timed_engines() {
  return 0;
}
std::vector<std::pair<std::string, std::string>> cuda_versions() {
  return {};
}

DeviceModel cuda_device_model(int) {
  return {};
}

int64_t cuda_device_memory(int) {
  return -1;
}

std::string cuda_bus_id(int) {
  return {};
}
#endif

std::vector<std::pair<std::string, std::string>> library_versions() {
  std::vector<std::pair<std::string, std::string>> versions = kernel_library_versions();
  for (auto& version : cuda_versions()) versions.push_back(std::move(version));
  return versions;
}

bool cpu_has_bfloat16() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16");
#else
  return true;
#endif
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != line.npos) return line.substr(colon + 2);
  }
  return {};
}

}  // namespace arbalest
