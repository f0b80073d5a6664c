// SPDX-License-Identifier: Apache-2.0
#include "executor/run/scheduler.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "base/number.h"
#include "base/plain_message.h"
#include "base/process.h"
#include "base/setting.h"
#include "base/time/clock.h"
#include "executor/devices/nvtx.h"
#include "executor/devices/threads.h"
#include "executor/trace/trace_recorder.h"
#include "executor/world/agreement.h"
#include "executor/world/standstill.h"
#include "graph/op.h"

namespace arbalest {
namespace {

constexpr int kIssuingThreads = 2;
// How long an issuing thread spins before it sleeps, when a GPU may be waiting for what it issues.
constexpr std::chrono::microseconds kPatience{100};
constexpr auto kLookUp = std::chrono::milliseconds(20);  // how often the waiting thread looks for an interrupt
constexpr auto kGrace = std::chrono::seconds(2);         // for what is still read when a run has ended

std::string named(const Node& node) {
  return fmt::format("node '{}' ({})", node.name, node.op->qualified_name());
}

// The work as its operator has it, with a byte moved as one operation; 0: the operator has no such number.
double work_of(const Plan& plan, const BoundLaunch& launch) {
  if (!launch.node->op->cost) return 0;
  const Cost cost = cost_of(plan.graphs[size_t(plan.launches[size_t(launch.launch)].program)], *launch.node);
  return cost.flops + cost.bytes;
}

int64_t time_of_queues(const Binding& binding) {
  int64_t sum = 0;
  for (const Queues* queues : binding.all_queues()) sum += queues->worked();
  return sum;
}

std::chrono::microseconds patience(const Plan& plan) {
  const auto gpu = [](const PlanDevice& device) { return device.kind == PlanDevice::Kind::Cuda; };
  const bool gpus = std::any_of(plan.devices.begin(), plan.devices.end(), gpu);
  return gpus ? kPatience : std::chrono::microseconds{0};
}

}  // namespace

Scheduler::Scheduler(const Binding& binding, HostFunctions host, SchedulerOptions options)
    : binding_(binding),
      plan_(binding.plan()),
      host_(std::move(host)),
      options_(std::move(options)),
      dependencies_(plan_, options_.from),
      times_(options_.trace ? plan_.tasks.size() * kTimes : 0),
      threads_(options_.shared ? options_.shared
                               : std::make_shared<ExecutorThreads>(options_.threads, kIssuingThreads, patience(plan_),
                                                                   options_.thread_starter)) {
  for (const TaskId task : plan_.tasks.ids()) on_host_.push_back(plan_.on_host(task));
  if (options_.trace) options_.trace->set_threads({threads_->threads(), threads_->issuing().count()});
  if (!options_.ranks) return;
  watched_.waits = std::make_unique<RankWaits>(plan_, dependencies_);
  watched_.kernels.resize(binding_.all_queues().size(), KernelWatch(options_.standstill_seconds));
}

void Scheduler::run(const std::stop_token& stop) {
  const Listening listening(*this);
  if (Ranks* ranks = options_.ranks.get()) {
    phase_.stretch = largest_of(ranks, ranks->called()) + 1;
    ranks->listen([this](const std::string& message) { fail(std::make_exception_ptr(TaskError(message, -1))); });
    ranks->watch([this] { return progress(); });
  }
  // Brings the run to rest on every way out of this function, so that nothing of it is under way afterwards.
  const struct Guard {
    Scheduler& scheduler;
    ~Guard() {
      scheduler.come_to_rest();
      if (Ranks* ranks = scheduler.options_.ranks.get()) {
        ranks->listen({});
        ranks->watch({});
        ranks->forget();
      }
    }
  } guard{*this};
  const Table<TaskId, int64_t> before = dependencies_.instances_before(options_.from);
  for (Queues* queues : binding_.all_queues()) {
    queues->go_on_from(before);
    queues->start(plan_, binding_.tasks(), *this, options_.trace);
  }
  dependencies_.rest_at(options_.first_rest);
  do {
    {
      const Active active(*this);
      dependencies_.start([this](TaskId task, int64_t instance) { dispatch(task, instance); });
    }
    wait(stop);
  } while (goes_on());
  come_to_rest();
  check();
}

// An issuing thread that hangs in NCCL comes back once that is aborted; the process ends if a call does not return.
Scheduler::Listening::Listening(Scheduler& scheduler)
    : calls_(scheduler.binding_.calls()),
      before_(calls_.listen({[&scheduler](const CallWatch::Late& late) {
                               const Active active(scheduler);
                               scheduler.failed(late.task, late.instance,
                                                std::make_exception_ptr(RunError(late.message)));
                             },
                             [&scheduler](const std::string& message) { scheduler.end_process(message); }})) {}

// Once nothing is under way: whether the run was only at rest.
bool Scheduler::goes_on() {
  if (options_.ranks && !end_.failed.load()) end_stretch();
  if (!options_.rest || phase_.stopping || end_.failed.load() || !dependencies_.complete() || dependencies_.at_end())
    return false;
  phase_.resting = false;
  const std::optional<int64_t> next = options_.rest();
  if (!next) return false;
  dependencies_.rest_at(*next);
  return true;
}

// Throws what has failed.
void Scheduler::check() {
  const std::exception_ptr error = [this] {
    const std::scoped_lock lock(mutex_);  // fail() may come from a thread that is not of the run
    return end_.error;
  }();
  if (error) std::rethrow_exception(error);
  if (!dependencies_.complete()) throw RunError("the plan came to a halt:\n" + describe_waiting());
}

// Hands an instance to its thread or queue. If that fails, the run ends with the error, and the instance does not count
// as active.
void Scheduler::dispatch(TaskId task, int64_t instance) noexcept {
  if (options_.trace) times(task, instance) = {options_.trace->now(), -1};  // before enter(), which hands it over
  enter();
  try {
    if (on_host_[task]) {
      threads_->host_tasks().enqueue([this, task, instance] {
        taken_over();
        run_host(task, instance);
      });
    } else {
      threads_->issuing().push(*this, task, instance);
    }
  } catch (...) {
    failed(task, instance, std::current_exception());
    leave();
  }
}

// Called after a run, and again by its guard, which is there for exceptions: only the first call has an effect.
void Scheduler::come_to_rest() {
  if (std::exchange(phase_.at_rest, true)) return;
  if (!dependencies_.idle()) dependencies_.cancel();
  // Under the mutex, as the last one to leave may still hold it: see leave().
  const auto busy = [this] {
    const std::scoped_lock lock(mutex_);
    return counts_.active.load(std::memory_order_acquire) > 0;
  };
  bool aborted = false;
  const auto abort_once = [&] {
    if (!end_.failed.load() || std::exchange(aborted, true)) return;
    for (Queues* queues : binding_.all_queues()) queues->abort();
  };
  auto next_look = std::chrono::steady_clock::now() + kGrace;
  const TimedLook last_resort = end_process_in_time();
  for (abort_once(); busy(); abort_once()) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    if (!options_.late_read || std::chrono::steady_clock::now() < next_look) continue;
    if (const std::optional<std::string> late = options_.late_read()) end_process(*late);
    next_look += std::chrono::seconds(1);
  }
  const Deadline until = drain_deadline();
  for (Queues* queues : binding_.all_queues()) queues->stop(until);
  for (const Queues* queues : binding_.all_queues()) {
    if (queues->under_way()) end_process("what a GPU has under way has not ended");
  }
}

// A look that ends the process unless it is destroyed in time: the others may have lost this rank because one of its
// threads hangs. While a device computes, time does not count until its kernel is late, except with GPUs, for which
// threads look all the time. Collectives have been called off, so that their threads have nothing to compute.
TimedLook Scheduler::end_process_in_time() {
  static constexpr auto kLook = std::chrono::seconds(1);
  constexpr int64_t kLeastWork = 10'000'000;  // ns of processor time between two looks
  using Seconds = std::chrono::duration<double>;
  if (!options_.ranks || !end_.failed.load()) return {};
  constexpr double kAtHost = 10;  // times as long for tasks of the host, whose threads' time is not known apart
  return look_each(kLook, [this, still = Seconds(0), late = Seconds(0), before = time_of_queues(binding_)]() mutable {
    const int64_t now = time_of_queues(binding_), worked = now - std::exchange(before, now);
    const auto runs_kernel = [](const Queues* queues) { return queues->executing().task != kNone; };
    const std::vector<Queues*>& all = binding_.all_queues();
    const bool computes = worked > kLeastWork && std::any_of(all.begin(), all.end(), runs_kernel);
    still = computes && !has_gpus() ? Seconds(0) : still + kLook;
    const double own = options_.standstill_seconds * (counts_.at_host.load() > 0 ? kAtHost : 1);
    const Seconds limit(has_gpus() ? options_.host_standstill_seconds : own);
    if (still >= kGrace + limit) end_process("a thread has not ended");
    const std::optional<std::string> why = late_kernel();
    late = why ? late + kLook : Seconds(0);
    if (late >= kGrace) end_process(*why);
  });
}

// Called with counts_.active already counted. The first device task that becomes ready is issued by the same thread.
void Scheduler::issue(TaskId task, int64_t instance) {
  while (task != kNone && !end_.failed.load(std::memory_order_relaxed)) {
    TaskId next = kNone;
    int64_t next_instance = 0;
    try {
      const int64_t began = options_.trace ? options_.trace->now() : 0;
      if (options_.trace) times(task, instance).issued = began;
      {
        const NvtxRange range(options_.nvtx, plan_.tasks[task].name, instance);
        binding_.queues(task).issue(binding_.tasks()[task], instance);
      }
      if (options_.trace) options_.trace->record(IssueSpan{task, instance, began, options_.trace->now(), 0});
      dependencies_.issued(task, instance, [&](TaskId ready, int64_t ready_instance) {
        if (next == kNone && !on_host_[ready]) {
          next = ready;
          next_instance = ready_instance;
          if (options_.trace) times(ready, ready_instance) = {options_.trace->now(), -1};
        } else {
          dispatch(ready, ready_instance);
        }
      });
    } catch (...) {
      failed(task, instance, std::current_exception());
    }
    task = next;
    instance = next_instance;
  }
  leave();
}

void Scheduler::run_host(TaskId task, int64_t instance) {
  if (end_.failed.load(std::memory_order_relaxed)) return leave();
  const int64_t started = options_.trace ? options_.trace->now() : -1;
  if (options_.trace) times(task, instance).issued = started;
  counts_.at_host.fetch_add(1);
  try {
    {
      const NvtxRange range(options_.nvtx, plan_.tasks[task].name, instance);
      host_[task](instance);
    }
    if (!plan_.tasks[task].deferred) {
      completed(task, instance, started, options_.trace ? options_.trace->now() : -1);
    }
  } catch (...) {
    failed(task, instance, std::current_exception());
  }
  counts_.at_host.fetch_sub(1);
  leave();
}

void Scheduler::finish(TaskId task, int64_t instance) {
  completed(task, instance, options_.trace ? times(task, instance).issued : -1,
            options_.trace ? options_.trace->now() : -1);
}

void Scheduler::completed(TaskId task, int64_t instance, int64_t started, int64_t ended) {
  enter();
  try {
    if (options_.trace) {
      const Times known = times(task, instance);
      options_.trace->record(TaskSpan{task, instance, known.ready, known.issued, started, ended});
    }
    if (binding_.all_queues().size() > 1) {
      for (Queues* queues : binding_.all_queues()) queues->wake();
    }
    const Task& ended = plan_.tasks[task];
    const bool fills = ended.kind == Task::Kind::Fill && ended.clock == 0;
    counts_.completions.fetch_add(1, std::memory_order_relaxed);  // before progress() sees what follows
    dependencies_.done(task, instance, [&](TaskId ready, int64_t i) {
      if (fills && plan_.tasks[ready].kind == Task::Kind::CopyIn) {
        counts_.late_batches.fetch_add(1, std::memory_order_relaxed);
      }
      dispatch(ready, i);
    });
  } catch (...) {
    failed(task, instance, std::current_exception());
  }
  leave();
}

void Scheduler::failed(TaskId task, int64_t instance, std::exception_ptr error) {
  dependencies_.cancel();
  const auto placed = [&](const std::exception_ptr& thrown) {
    std::string message = "an unknown error";
    try {
      std::rethrow_exception(thrown);
    } catch (const TaskError&) {  // of the training as a whole
      return thrown;
    } catch (const InterruptedError&) {
      return thrown;
    } catch (const DeviceError& e) {
      message = e.what();
      for (const auto& [other, at] : e.besides) {
        message += fmt::format("{} {}", &other == &e.besides[0].first ? "; or met by:" : ";", error_place(other, at));
      }
    } catch (const std::exception& e) {
      message = plain_message(e);
    } catch (...) {
    }
    const bool tells = task != kNone && plan_.tasks[task].clock == 0;
    const int64_t iteration = tells ? options_.first_iteration + instance : -1;
    return std::make_exception_ptr(TaskError(fmt::format("{}: {}", error_place(task, instance), message), iteration));
  };
  try {
    error = placed(error);
  } catch (...) {  // no memory for the message: the error is reported without its place
  }
  const std::scoped_lock lock(mutex_);
  end_.failed.store(true);
  if (!end_.error) end_.error = error;
  changed_.notify_all();
}

std::string Scheduler::error_place(TaskId id, int64_t instance) const {
  if (id == kNone) return "a device";
  const Task& task = plan_.tasks[id];
  std::string place = task.name;
  if (task.device != kNone) place += fmt::format(", device {}", to_string(plan_.devices[size_t(task.device)]));
  if (task.learner != kNone) place += fmt::format(", learner {}", task.learner);
  return place + fmt::format(", {} {}", plan_.clocks[task.clock].name, instance);
}

// With the iteration of the run, if the task's clock is clock 0 or a coarser one.
std::string Scheduler::place_of(TaskId task, int64_t instance) const {
  const ClockId clock = plan_.tasks[task].clock;
  std::optional<int64_t> iteration;
  if (clock == 0) iteration = instance;
  for (const ClockRelation& relation : plan_.relations) {
    if (relation.fine == 0 && relation.coarse == clock && !iteration) iteration = relation.last_of(instance);
  }
  const std::string place = error_place(task, instance);
  return iteration ? fmt::format("{}, iteration {}", place, options_.first_iteration + *iteration) : place;
}

std::string Scheduler::describe_waiting() const {
  std::string text;
  for (const Dependencies::Waiting& waiting : dependencies_.describe_waiting()) {
    text += fmt::format("  {} {}", plan_.tasks[waiting.task].name, waiting.instance);
    if (waiting.running > 0) text += fmt::format(", {} running", waiting.running);
    for (const auto& lack : waiting.lacks) {
      const Edge& edge = plan_.edges[lack.edge];
      text += fmt::format(", waits for {} {}{}", plan_.tasks[edge.from].name, lack.needs,
                          edge.what.empty() ? "" : fmt::format(" ({})", edge.what));
    }
    text += '\n';
  }
  return text;
}

bool Scheduler::has_gpus() const {
  return std::any_of(plan_.devices.begin(), plan_.devices.end(),
                     [](const PlanDevice& device) { return device.kind == PlanDevice::Kind::Cuda; });
}

// ", node 'conv' (Conv)" if a thread of a CPU device runs a kernel of this task.
std::string Scheduler::kernel_under_way(TaskId task) const {
  for (const Queues* queues : binding_.all_queues()) {
    const Queues::Executing executing = queues->executing();
    if (executing.task != task || !executing.launch) continue;
    return ", " + named(*executing.launch->node);
  }
  return "";
}

// The thread of a CPU device that works at a task needs nobody. Otherwise a collective under way is why others behind
// it in their lanes wait. A deferred task has handed its part to the other ranks and waits for theirs. What hangs on a
// GPU is found by the rank itself, which knows more of it, so that the limit is longer there. But no rank can tell
// whether a collective waits for its own GPU or for another. First uses of kernels and connections may take minutes.
RankProgress Scheduler::progress() const {
  using UnderWay = RankProgress::UnderWay;
  constexpr double kGpuPatience = 1.5, kFirstPatience = 30;
  constexpr int64_t kFirstInstances = 16;  // with all variants of a task, which are recorded when they first run
  RankProgress found;
  found.completed = counts_.completions.load(std::memory_order_relaxed);
  const bool gpus = has_gpus();
  const std::vector<Dependencies::Running> running = dependencies_.running();
  const Table<TaskId, int64_t> before = dependencies_.instances_before(options_.from);
  const bool begins = std::any_of(running.begin(), running.end(), [&](const Dependencies::Running& one) {
    return !on_host_[one.task] && one.instance < before[one.task] + kFirstInstances;
  });
  const double limit = options_.standstill_seconds * (!gpus ? 1 : begins ? kFirstPatience : kGpuPatience);
  std::set<TaskId> executing;
  for (const Queues* queues : binding_.all_queues()) executing.insert(queues->executing().task);
  enum Weight { Nothing, Queued, Hosts, Together, Executed } heaviest = Nothing;
  int64_t summed_bytes = 0;
  for (const auto& [task, instance] : running) {
    const Task& under_way = plan_.tasks[task];
    const bool together = under_way.kind == Task::Kind::Collective || under_way.deferred, host = on_host_[task] != 0;
    summed_bytes += under_way.reduced_bytes;
    const Weight weight = together ? Together : executing.contains(task) ? Executed : host ? Hosts : Queued;
    if (weight <= heaviest) continue;
    heaviest = weight;
    found.under_way = together ? UnderWay::Others : UnderWay::Own;
    found.limit = host && !together ? std::max(limit, options_.host_standstill_seconds) : limit;
    found.at = place_of(task, instance) + (weight == Executed ? kernel_under_way(task) : "");
  }
  if (heaviest == Together && gpus && !begins) found.limit = limit_of_sums(options_.standstill_seconds, summed_bytes);
  if (running.empty()) found.at = "no task";
  const auto now = std::chrono::steady_clock::now();
  for (const RankWaits::Wait& wait : watched_.waits->look(now)) {
    const auto since = std::chrono::duration<double>(now - wait.since).count();
    found.waits.push_back({place_of(wait.task, wait.instance), since, wait.ranks});
  }
  // Threads that wait for a GPU look whether it is done, and so take time. A library's thread may look as well, for
  // ever: it counts only where it may be the one that works.
  const bool all_threads = heaviest == Hosts || heaviest == Together;
  if (!gpus) found.worked = all_threads ? clock_ns(CLOCK_PROCESS_CPUTIME_ID) : time_of_queues(binding_);
  return found;
}

// Once the count is zero at the end of a run, the scheduler may be gone. What comes after belongs under the mutex,
// which the waiting thread holds when it looks. If the last one to leave took the short way, that thread finds out at
// its next look.
void Scheduler::leave() {
  if (!dependencies_.idle() && !end_.failed.load(std::memory_order_relaxed)) {
    counts_.active.fetch_sub(1, std::memory_order_acq_rel);
    return;
  }
  const std::scoped_lock lock(mutex_);
  counts_.active.fetch_sub(1, std::memory_order_acq_rel);
  changed_.notify_all();
}

// Asks all processes to come to rest if that is due here, and answers if one has asked.
void Scheduler::look_up_with_others(bool interrupted) {
  if (interrupted && !options_.rest) return fail(std::make_exception_ptr(InterruptedError("interrupted")));
  if (!phase_.asked && (interrupted || (options_.rest_due && options_.rest_due()))) {
    phase_.asked = true;
    options_.ranks->call(phase_.stretch);
  }
  if (!phase_.answered && options_.ranks->called() >= phase_.stretch) agree_on_rest(true);
}

// Gives this process's answer. If it `holds`, the iteration to rest after is the largest of all answers; otherwise it
// has run as far as the plan lets it, which is as far for all.
void Scheduler::agree_on_rest(bool holds) {
  phase_.answered = true;
  Ranks::Then then;
  int64_t iterations = dependencies_.limit(0);
  if (holds) {
    phase_.holding.store(true);
    iterations = dependencies_.hold();
    then = [this](const Ranks::Parts& parts) {
      int64_t most = 0;
      for (const std::string& part : parts) most = std::max(most, read_number<int64_t>(part).value_or(0));
      const Active active(*this);
      dependencies_.pause_at(most, [this](TaskId task, int64_t instance) { dispatch(task, instance); });
      phase_.holding.store(false);
    };
  }
  options_.ranks->exchange(fmt::format("rest {}", phase_.stretch), std::to_string(iterations), std::move(then));
}

void Scheduler::end_stretch() {
  if (!phase_.answered) agree_on_rest(false);
  phase_.asked = phase_.answered = false;
  ++phase_.stretch;
}

// Called now and then by the waiting thread: ends the run, or brings it to rest, if that is due.
void Scheduler::look_up(bool interrupted) {
  if (options_.ranks) return look_up_with_others(interrupted);
  const auto ready = [this](TaskId task, int64_t instance) { dispatch(task, instance); };
  const bool rests = bool(options_.rest);
  if (!phase_.stopping && (end_.requested.load() || (interrupted && !rests))) {
    const Active active(*this);
    dependencies_.stop(ready);
    phase_.stopping = true;
  }
  if (!rests || phase_.stopping || phase_.resting) return;
  // True if training has run up to the next rest. Then only a validation may be under way, and the rest does not wait
  // for its end.
  const bool there = dependencies_.limit(0) < plan_.clocks[0].ticks && dependencies_.trained();
  if (!there && !interrupted && !(options_.rest_due && options_.rest_due())) return;
  const Active active(*this);
  dependencies_.pause(ready);
  phase_.resting = true;
}

void Scheduler::rest() {
  const Active active(*this);
  dependencies_.pause([this](TaskId task, int64_t instance) { dispatch(task, instance); });
}

void Scheduler::look_for_late_read() {
  const std::optional<std::string> late = options_.late_read ? options_.late_read() : std::nullopt;
  if (late) fail(std::make_exception_ptr(TaskError(*late, -1)));
}

// A message about a kernel on a CPU device that computes for longer than it may.
std::optional<std::string> Scheduler::late_kernel() {
  for (size_t i = 0; i < watched_.kernels.size(); ++i) {
    const Queues& queues = *binding_.all_queues()[i];
    const Queues::Executing executing = queues.executing();
    KernelWatch::Look look{.launch = -1, .begun = executing.begun, .worked = queues.worked()};
    if (executing.launch) {
      look.work = work_of(plan_, *executing.launch);
      look.launch = executing.launch->launch;
      look.first = dependencies_.ended(executing.task) == dependencies_.instances_before(options_.from)[executing.task];
    }
    const std::optional<KernelWatch::Late> late = watched_.kernels[i].look(look);
    if (!late) continue;
    return fmt::format("{}: {} has computed for {:.0f} s; expected {:.0f} s at most: if it may take so long, raise {}",
                       error_place(executing.task, dependencies_.ended(executing.task)), named(*executing.launch->node),
                       late->taken, late->most, name_of(SettingKey::DeviceTimeout));
  }
  return std::nullopt;
}

void Scheduler::look_for_late_kernel() {
  if (const std::optional<std::string> late = late_kernel()) fail(std::make_exception_ptr(TaskError(*late, -1)));
}

void Scheduler::look_for_stall() {
  // Between two looks no more counts: if the process itself stood still, nothing was watched.
  constexpr double kLongestStep = 1, kOfLongest = 3;
  const auto now = std::chrono::steady_clock::now();
  const double step = std::chrono::duration<double>(now - std::exchange(watched_.last, now)).count();
  const int64_t count = counts_.completions.load();
  if (std::exchange(watched_.completions, count) != count) {
    watched_.longest = std::max(watched_.longest, watched_.still);
    watched_.still = 0;
    watched_.reported = false;
    return;
  }
  watched_.still += std::min(step, kLongestStep);
  const Ranks* ranks = options_.ranks.get();
  const double limit = ranks ? std::min(options_.stall_seconds, options_.standstill_seconds) : options_.stall_seconds;
  if (watched_.still <= std::max(limit, kOfLongest * watched_.longest)) return;
  if (watched_.reported || !options_.stalled) return;
  const bool owes = ranks && progress().under_way == RankProgress::UnderWay::Own;
  if (ranks && !ranks->first() && !owes) return;  // it may owe something at a later look
  watched_.reported = true;
  options_.stalled(describe_waiting() + (ranks && ranks->first() ? ranks->places() : ""));
}

void warn_of_stall(const std::string& report) {
  warn(fmt::format("nothing has completed for a while; waiting:\n{}", report));
}

void Scheduler::end_process(std::string message) {
  static std::mutex ending;
  ending.lock();  // by the first thread to get here, and for good
  try {
    check();
  } catch (const std::exception& error) {  // the run's first error is what it ends by
    const std::string first = plain_message(error);
    message = first.find(message) == first.npos ? fmt::format("{}; then the process ended: {}", first, message) : first;
  }
  if (options_.process_ends) options_.process_ends(message);
  arbalest::end_process(message);
}

void Scheduler::wait(const std::stop_token& stop) {
  watched_.completions = -1;  // a rest is no stall
  std::unique_lock lock(mutex_);
  // After an error a thread may hang in issuing until the devices are aborted, which comes after this.
  // A held run goes on before it counts as held no more, so that is looked at first.
  const auto at_rest = [&] {
    return end_.error ||
           (!phase_.holding.load() && counts_.active.load(std::memory_order_acquire) == 0 && dependencies_.idle());
  };
  while (!at_rest()) {
    changed_.wait_for(lock, kLookUp);
    lock.unlock();
    look_up(stop.stop_requested());
    look_for_late_read();
    look_for_late_kernel();
    if (watched_.waits) watched_.waits->look(std::chrono::steady_clock::now());
    look_for_stall();
    lock.lock();
  }
}

}  // namespace arbalest
