// SPDX-License-Identifier: Apache-2.0

// Collectives over GPUs: one queue over all of them, an NCCL group for each instance, with a stream and an event on
// every device. Instances are issued one at a time, so that all devices see them in the same order. Several processes
// have the same order only within a lane, so each lane has communicators of its own there.

#include <cuda_runtime.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "executor/devices/cuda_cache.h"
#include "executor/devices/cuda_poller.h"
#include "executor/devices/hang_watch.h"
#include "executor/plan/plan_part.h"
#include "executor/trace/trace_recorder.h"
#include "executor/world/ranks.h"
#include "ops/replicas/collective_context.h"

namespace arbalest {
namespace {

constexpr auto kEndBound = std::chrono::seconds(2);  // for collectives under way, before they are aborted
// Time for a collective of several processes, whose inputs elsewhere may not be ready: others may read slowly. That
// one of them is lost is for Ranks to say, much sooner.
constexpr double kOthersBound = 600;  // s
// Time for connecting, of which NCCL takes most to load its kernels, and more on many hosts.
constexpr double kConnecting = 3, kEachGpu = 0.05;  // times --device-timeout; s

std::vector<int> ordinals_of(const std::vector<PlanDevice>& devices) {
  std::vector<int> ordinals;
  for (const PlanDevice& device : devices) ordinals.push_back(device.index);
  return ordinals;
}

// The devices' places among those of all ranks.
std::vector<int> places_of(int rank, const std::vector<int>& ranks_of_devices) {
  std::vector<int> places;
  for (size_t i = 0; i < ranks_of_devices.size(); ++i) {
    if (ranks_of_devices[i] == rank) places.push_back(int(i));
  }
  return places;
}

// Every rank calls it at the same time, each for a group of ranks that it is one of; the first of a group names it.
std::shared_ptr<CollectiveContext> connect_ranks(const std::vector<int>& ordinals, Ranks& ranks,
                                                 const std::vector<int>& ranks_of_devices, double device_timeout) {
  const int first = *std::min_element(ranks_of_devices.begin(), ranks_of_devices.end());
  std::string own;
  if (ranks.rank() == first) {
    const ncclUniqueId made = make_collective_id();
    own.assign(made.internal, sizeof made.internal);
  }
  const std::string given = ranks.exchange("collectives", own)[size_t(first)];
  ncclUniqueId id;
  if (given.size() != sizeof id.internal) throw RunError(ranks.name(first) + " sent no name for the collectives");
  std::copy(given.begin(), given.end(), id.internal);
  return std::make_shared<CollectiveContext>(
      ordinals, places_of(ranks.rank(), ranks_of_devices), int(ranks_of_devices.size()), id,
      kConnecting * device_timeout + kEachGpu * double(ranks_of_devices.size()), [&] {
        if (const auto lost = ranks.lost()) throw RunError(*lost);
      });
}

class CudaCollectives final : public Queues {
  using Instance = CudaPoller::Pending::Instance;

  // Communicators that some lanes share, and what is under way on them.
  struct Link {
    std::shared_ptr<CollectiveContext> context;
    HangWatch watch;  // of the oldest that is under way; the polling thread's own
    CudaPoller::Pending pending;
    std::atomic<bool> progress{false};         // something has completed since the watch last looked
    std::vector<CallWatch::Caller*> aborting;  // by device: who aborts its communicator

    Link(std::shared_ptr<CollectiveContext> context, double limit)
        : context(std::move(context)), watch(HangWatch::Seconds(limit)) {}
  };

 public:
  CudaCollectives(const Plan& plan, std::shared_ptr<Ranks> ranks, std::shared_ptr<CudaEvents> events, CallWatch& calls,
                  std::shared_ptr<DeviceCache> cache)
      : world_{std::move(ranks), plan, calls.limit()},
        devices_(ordinals_of(plan.devices)),
        cache_(std::move(cache)),
        limit_(world_.ranks ? std::max(calls.limit(), kOthersBound) : calls.limit()),
        events_(std::move(events)),
        callers_{calls, calls.add(device_names()), calls.add(device_names()), calls.add(device_names())},
        event_lists_(plan.devices.size()) {}
  ~CudaCollectives() override { stop(drain_deadline()); }

  void make_queue(LaneId lane, Lane::Kind) override {
    if (!world_.ranks && !world_.plan.lanes[lane].spans.empty()) {
      throw std::logic_error("one process has one communicator, of all its devices");
    }
    if (world_.ranks || links_.empty()) {
      const std::vector<int> ranks = world_.ranks ? ranks_of(world_.plan, lane) : std::vector<int>();
      const int era = world_.ranks ? world_.ranks->era() : 0;
      auto& all = cache_->collectives;
      std::erase_if(all, [era](const auto& entry) { return entry.first.era != era; });
      std::shared_ptr<CollectiveContext>& known = all[{devices_, ranks, links_.size(), era}];
      if (!known || known->aborted()) {
        known = world_.ranks ? connect_ranks(devices_, *world_.ranks, ranks, world_.device_timeout)
                             : std::make_shared<CollectiveContext>(devices_);
      }
      links_.push_back(std::make_unique<Link>(known, limit_));
      for (const std::string& device : device_names()) {
        links_.back()->aborting.push_back(
            &callers_.calls.add({device}, fmt::format("NCCL's abort of '{}'", world_.plan.lanes[lane].name)));
      }
    }
    by_lane_[lane] = links_.back().get();
  }
  DeviceContext* context(LaneId lane) override { return by_lane_.at(lane)->context.get(); }
  void* stream(LaneId) override { return nullptr; }  // the context has one a device
  void run_there(const std::function<void()>& function) override {
    enter(0);
    function();
  }

  void start(const Plan& plan, const Table<TaskId, BoundTask>& tasks, CompletionSink& sink,
             TraceRecorder* trace) override {
    run_ = {&plan, &tasks, trace};
    ran_.assign(plan.tasks.size(), {});
    for (const BoundTask& task : tasks) {
      if (plan.on_host(task.id) || plan.tasks[task.id].device != kNone) continue;
      ran_[task.id].resize(task.variants.size());
      CudaEvents::Ring& ring = events_->ring[task.id];
      ring.per_instance = devices_.size();
      ring.events.resize(size_t(task.events) * ring.per_instance);
      for (size_t e = 0; e < ring.events.size(); ++e) {
        const size_t device = e % ring.per_instance;
        enter(device);
        ring.events[e] = event_lists_[device].add(trace != nullptr && device == 0);
      }
    }
    std::vector<CudaPoller::Pending*> pending;
    for (const auto& link : links_) pending.push_back(&link->pending);
    poller_ = std::make_unique<CudaPoller>(
        device_names(), devices_[0], std::move(pending),
        CudaPoller::Watched{sink, trace, callers_.looking,
                            [this](size_t link, const Instance& oldest, bool) { check(*links_[link], oldest); }},
        cache_->polling_thread(devices_[0]));
  }

  void issue(const BoundTask& task, int64_t instance) override {
    const std::scoped_lock lock(mutex_);
    Link& link = *by_lane_.at(run_.plan->tasks[task.id].lane);
    const std::vector<cudaStream_t>& streams = link.context->streams;
    CudaEvents::Ring& ring = events_->ring[task.id];
    const cudaEvent_t* ended = ring.of(instance);
    events_->issue_one_more(ring);
    const CallWatch::Call call(callers_.issuing, task.id, instance);
    for (size_t d = 0; d < devices_.size(); ++d) {
      enter(d);
      for_inputs(task, instance, d, [&](cudaEvent_t event) {
        CUDA_CHECK(cudaStreamWaitEvent(streams[d], event, 0));
        return true;
      });
    }
    run(task, task.variant_of(instance));
    for (size_t d = 0; d < devices_.size(); ++d) {
      enter(d);
      CUDA_CHECK(cudaEventRecord(ended[d], streams[d]));
    }
    poller_->push(link.pending, {task.id, instance, run_.trace ? run_.trace->now() : -1, &ring});
  }

  // Called for everything that completes.
  void wake() override {
    for (const auto& link : links_) {
      if (!link->progress.load(std::memory_order_relaxed)) link->progress.store(true, std::memory_order_relaxed);
    }
  }

  // Collectives that can end shall: aborting takes away memory that they use.
  void abort() override {
    events_->failed = true;
    std::unique_lock lock(mutex_, std::defer_lock);
    const auto until = std::chrono::steady_clock::now() + kEndBound;
    const bool issuing = !lock.try_lock_until(until);  // a thread that hangs in NCCL comes back from what follows
    while (!issuing && !hangs_ && streams_busy() && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::vector<CollectiveContext*> contexts;
    for (const auto& link : links_) {
      link->pending.cut();
      contexts.push_back(link->context.get());
    }
    CollectiveContext::abort(contexts, [this](size_t link, size_t device, const std::function<void()>& abort) {
      const CallWatch::Call call(*links_[link]->aborting[device]);
      abort();
    });
  }

  void stop(Deadline until) override {
    if (poller_) poller_->stop(until);
  }
  bool under_way() const override { return poller_ && poller_->under_way(); }

 private:
  void enter(size_t device) const { CUDA_CHECK(cudaSetDevice(devices_[device])); }

  void run(const BoundTask& task, size_t variant) {
    std::optional<CallWatch::Loading> loading;
    if (!std::exchange(ran_[task.id][variant], 1)) loading.emplace(callers_.issuing);
    telling_who_is_lost([&] {
      for (const BoundLaunch& launch : task.variants[variant].launches) launch.run();
    });
  }

  // NCCL says of a connection that it ended, but not why.
  template <typename Call>
  void telling_who_is_lost(const Call& call) const {
    try {
      call();
    } catch (const RunError& error) {
      if (!world_.ranks) throw;
      throw RunError(world_.ranks->find_out().value_or(error.what()));
    }
  }

  bool streams_busy() const {
    const CallWatch::Call call(callers_.ending);
    const auto busy = [](cudaStream_t stream) { return cudaStreamQuery(stream) == cudaErrorNotReady; };
    return std::any_of(links_.begin(), links_.end(), [&](const auto& link) {
      return std::any_of(link->context->streams.begin(), link->context->streams.end(), busy);
    });
  }

  // Calls `use` with the events that instance `instance` of a task waits for on a device, until it returns false.
  // Returns whether it never did.
  template <typename Use>
  bool for_inputs(const BoundTask& task, int64_t instance, size_t device, const Use& use) const {
    for (const BoundWait& wait : task.waits) {
      const int32_t from = run_.plan->tasks[wait.from].device;
      const int64_t needed = needed_instance(*run_.plan, wait.edge, instance);
      const bool concerned = from == kNone || size_t(from) == device;
      if (!concerned || needed < 0) continue;
      if (!use(events_->of(wait.from, needed, int32_t(device)))) return false;
    }
    return true;
  }

  // Whether every device could have started the collective: what it waits for there has ended. An event belongs to the
  // instance that is waited for as long as the collective has not ended: the plan keeps its task from running ahead.
  bool inputs_ready(const Instance& collective) const {
    const BoundTask& task = (*run_.tasks)[collective.task];
    for (size_t d = 0; d < devices_.size(); ++d) {
      const auto ended = [](cudaEvent_t event) { return cudaEventQuery(event) != cudaErrorNotReady; };
      if (!for_inputs(task, collective.instance, d, ended)) return false;
    }
    return true;
  }

  // NCCL reports errors of what is under way only when asked, and of a device that does not take part it knows nothing.
  void check(Link& link, const Instance& oldest) {
    if (const std::unique_lock lock(mutex_, std::try_to_lock); lock && !link.context->aborted()) {
      telling_who_is_lost([&] { link.context->check(); });
    }
    const HangWatch::Look look{.task = oldest.task,
                               .instance = oldest.instance,
                               .ready = inputs_ready(oldest),
                               .progress = link.progress.exchange(false, std::memory_order_relaxed)};
    if (!link.watch.hangs(look, std::chrono::steady_clock::now())) return;
    hangs_ = true;
    throw RunError(fmt::format("has not ended for {:g} s, with its inputs ready on all devices{}, on {}", limit_,
                               world_.ranks ? " of this rank" : "", unfinished(oldest)));
  }

  std::vector<std::string> device_names() const {
    std::vector<std::string> names;
    for (const int device : devices_) names.push_back(fmt::format("cuda:{}", device));
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

  struct World {
    std::shared_ptr<Ranks> ranks;  // nullptr: all devices are here
    const Plan& plan;
    double device_timeout;  // s
  };
  struct Callers {
    CallWatch& calls;
    CallWatch::Caller &issuing, &looking, &ending;  // who issues, with the mutex; the poller; who ends the run
  };
  struct Run {
    const Plan* plan = nullptr;
    const Table<TaskId, BoundTask>* tasks = nullptr;
    TraceRecorder* trace = nullptr;
  };

  const World world_;
  const std::vector<int> devices_;  // ordinals
  const std::shared_ptr<DeviceCache> cache_;
  const double limit_;  // s
  std::shared_ptr<CudaEvents> events_;
  const Callers callers_;
  std::vector<std::unique_ptr<Link>> links_;
  std::map<LaneId, Link*> by_lane_;
  std::vector<CudaEventList> event_lists_;  // one a device
  Run run_;
  std::timed_mutex mutex_;                   // of who issues
  Table<TaskId, std::vector<uint8_t>> ran_;  // by variant, with the mutex: NCCL loads and connects at first use
  std::atomic<bool> hangs_{false};           // a collective that will not end
  std::unique_ptr<CudaPoller> poller_;
};

}  // namespace

std::unique_ptr<Queues> make_cuda_collectives(const Plan& plan, std::shared_ptr<Ranks> ranks,
                                              std::shared_ptr<CudaEvents> events, CallWatch& calls,
                                              const std::shared_ptr<DeviceCache>& cache) {
  return std::make_unique<CudaCollectives>(plan, std::move(ranks), std::move(events), calls, cache);
}

}  // namespace arbalest
