// SPDX-License-Identifier: Apache-2.0

// Collectives over GPUs: one queue over all of them, an NCCL group for each instance, with a stream and an event on
// every device. Instances are issued one at a time, so that all devices see them in the same order.

#include <cuda_runtime.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "executor/devices/cuda_cache.h"
#include "executor/devices/cuda_poller.h"
#include "executor/devices/hang_watch.h"
#include "executor/trace/trace_recorder.h"
#include "ops/replicas/collective_context.h"

namespace arbalest {
namespace {

constexpr auto kEndBound = std::chrono::seconds(2);  // for collectives under way, before they are aborted

std::vector<int> ordinals_of(const std::vector<PlanDevice>& devices) {
  std::vector<int> ordinals;
  for (const PlanDevice& device : devices) ordinals.push_back(device.index);
  return ordinals;
}

std::shared_ptr<CollectiveContext> connected(const std::vector<int>& ordinals, DeviceCache& cache) {
  std::shared_ptr<CollectiveContext>& known = cache.collectives[ordinals];
  if (!known || known->aborted()) known = std::make_shared<CollectiveContext>(ordinals);
  return known;
}

class CudaCollectives final : public Queues {
  using Instance = CudaPoller::Pending::Instance;

 public:
  CudaCollectives(const std::vector<PlanDevice>& devices, std::shared_ptr<CudaEvents> events, CallWatch& calls,
                  DeviceCache& cache)
      : context_(connected(ordinals_of(devices), cache)),
        events_(std::move(events)),
        issuing_(calls.add(device_names())),
        looking_(calls.add(device_names())),
        ending_(calls.add(device_names())),
        watch_(HangWatch::Seconds(calls.limit())),
        event_lists_(devices.size()) {}
  ~CudaCollectives() override { stop(drain_deadline()); }

  void make_queue(LaneId, Lane::Kind) override {}
  DeviceContext* context() override { return context_.get(); }
  void* stream(LaneId) override { return nullptr; }  // the context has one a device
  void run_there(const std::function<void()>& function) override {
    enter(0);
    function();
  }

  void start(const Plan& plan, const std::vector<BoundTask>& tasks, CompletionSink& sink,
             TraceRecorder* trace) override {
    plan_ = &plan;
    tasks_ = &tasks;
    trace_ = trace;
    ran_.assign(plan.tasks.size(), {});
    for (const BoundTask& task : tasks) {
      if (plan.on_host(task.id) || plan.tasks[size_t(task.id)].device != kNone) continue;
      ran_[size_t(task.id)].resize(task.variants.size());
      CudaEvents::Ring& ring = events_->ring[size_t(task.id)];
      ring.per_instance = context_->devices.size();
      ring.events.resize(size_t(task.events) * ring.per_instance);
      for (size_t e = 0; e < ring.events.size(); ++e) {
        const size_t device = e % ring.per_instance;
        enter(device);
        ring.events[e] = event_lists_[device].add(trace != nullptr && device == 0);
      }
    }
    poller_ = std::make_unique<CudaPoller>(device_names(), context_->devices[0], std::vector{&pending_}, sink, trace,
                                           looking_, [this](size_t, const Instance& oldest, bool) { check(oldest); });
  }

  void issue(const BoundTask& task, int64_t instance) override {
    const std::scoped_lock lock(mutex_);
    CudaEvents::Ring& ring = events_->ring[size_t(task.id)];
    const cudaEvent_t* ended = ring.of(instance);
    events_->issue_one_more(ring);
    const CallWatch::Call call(issuing_, task.id, instance);
    for (size_t d = 0; d < context_->devices.size(); ++d) {
      enter(d);
      for_inputs(task, instance, d, [&](cudaEvent_t event) {
        CUDA_CHECK(cudaStreamWaitEvent(context_->streams[d], event, 0));
        return true;
      });
    }
    run(task, task.variant_of(instance));
    for (size_t d = 0; d < context_->devices.size(); ++d) {
      enter(d);
      CUDA_CHECK(cudaEventRecord(ended[d], context_->streams[d]));
    }
    poller_->push(pending_, {task.id, instance, trace_ ? trace_->now() : -1, &ring});
  }

  // Called for everything that completes.
  void wake() override {
    if (!progress_.load(std::memory_order_relaxed)) progress_.store(true, std::memory_order_relaxed);
  }

  // Collectives that can end shall: aborting takes away memory that they use.
  void abort() override {
    events_->failed = true;
    const CallWatch::Call call(ending_);
    std::unique_lock lock(mutex_, std::defer_lock);
    const auto until = std::chrono::steady_clock::now() + kEndBound;
    const bool issuing = !lock.try_lock_until(until);  // a thread that hangs in NCCL comes back from what follows
    while (!issuing && !hangs_ && streams_busy() && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    context_->abort();
  }

  void stop(Deadline until) override {
    if (poller_) poller_->stop(until);
  }
  bool under_way() const override { return poller_ && poller_->under_way(); }

 private:
  void enter(size_t device) const { CUDA_CHECK(cudaSetDevice(context_->devices[device])); }

  void run(const BoundTask& task, size_t variant) {
    std::optional<CallWatch::Loading> loading;
    if (!std::exchange(ran_[size_t(task.id)][variant], 1)) loading.emplace(issuing_);
    for (const BoundLaunch& launch : task.variants[variant].launches) launch.run();
  }

  bool streams_busy() const {
    return std::any_of(context_->streams.begin(), context_->streams.end(),
                       [](cudaStream_t stream) { return cudaStreamQuery(stream) == cudaErrorNotReady; });
  }

  // Calls `use` with the events that instance `instance` of a task waits for on a device, until it returns false.
  // Returns whether it never did.
  template <typename Use>
  bool for_inputs(const BoundTask& task, int64_t instance, size_t device, const Use& use) const {
    for (const BoundWait& wait : task.waits) {
      const int32_t from = plan_->tasks[size_t(wait.from)].device;
      const int64_t needed = needed_instance(*plan_, wait.edge, instance);
      const bool concerned = from == kNone || size_t(from) == device;
      if (!concerned || needed < 0) continue;
      if (!use(events_->of(wait.from, needed, int32_t(device)))) return false;
    }
    return true;
  }

  // Whether every device could have started the collective: what it waits for there has ended. An event belongs to the
  // instance that is waited for as long as the collective has not ended: the plan keeps its task from running ahead.
  bool inputs_ready(const Instance& collective) const {
    const BoundTask& task = (*tasks_)[size_t(collective.task)];
    for (size_t d = 0; d < context_->devices.size(); ++d) {
      const auto ended = [](cudaEvent_t event) { return cudaEventQuery(event) != cudaErrorNotReady; };
      if (!for_inputs(task, collective.instance, d, ended)) return false;
    }
    return true;
  }

  // NCCL reports errors of what is under way only when asked, and of a device that does not take part it knows nothing.
  void check(const Instance& oldest) {
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock && !context_->aborted()) context_->check();
    const HangWatch::Look look{.task = oldest.task,
                               .instance = oldest.instance,
                               .ready = inputs_ready(oldest),
                               .progress = progress_.exchange(false, std::memory_order_relaxed)};
    if (!watch_.hangs(look, std::chrono::steady_clock::now())) return;
    hangs_ = true;
    throw RunError(fmt::format("has not ended for {:g} s, with its inputs ready on all devices, on {}",
                               watch_.limit().count(), unfinished(oldest)));
  }

  std::vector<std::string> device_names() const {
    std::vector<std::string> names;
    for (const int device : context_->devices) names.push_back(fmt::format("cuda:{}", device));
    return names;
  }

  std::string unfinished(const Instance& instance) const {
    std::vector<std::string> names = device_names();
    const cudaEvent_t* ended = instance.ring->of(instance.instance);
    for (size_t d = names.size(); d-- > 0;) {
      if (cudaEventQuery(ended[d]) != cudaErrorNotReady) names.erase(names.begin() + std::ptrdiff_t(d));
    }
    return names.empty() ? "any device" : fmt::format("{}", fmt::join(names, ", "));
  }

  const std::shared_ptr<CollectiveContext> context_;
  std::shared_ptr<CudaEvents> events_;
  CallWatch::Caller &issuing_, &looking_, &ending_;  // who issues, with the mutex; the poller; who ends the run
  HangWatch watch_;                                  // of the oldest that is under way; the polling thread's own
  std::atomic<bool> progress_{false};                // something has completed since the watch last looked
  std::vector<CudaEventList> event_lists_;           // one a device
  TraceRecorder* trace_ = nullptr;
  const Plan* plan_ = nullptr;
  const std::vector<BoundTask>* tasks_ = nullptr;
  std::timed_mutex mutex_;                 // of who issues
  std::vector<std::vector<uint8_t>> ran_;  // by task and variant, with the mutex: NCCL loads and connects at first use
  std::atomic<bool> hangs_{false};         // a collective that will not end
  CudaPoller::Pending pending_;
  std::unique_ptr<CudaPoller> poller_;
};

}  // namespace

std::unique_ptr<Queues> make_cuda_collectives(const std::vector<PlanDevice>& devices,
                                              std::shared_ptr<CudaEvents> events, CallWatch& calls,
                                              const std::shared_ptr<DeviceCache>& cache) {
  return std::make_unique<CudaCollectives>(devices, std::move(events), calls, *cache);
}

}  // namespace arbalest
