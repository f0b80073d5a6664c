// SPDX-License-Identifier: Apache-2.0
#pragma once
// Runs a bound plan: counts dependencies, hands ready device tasks to their queues and ready host tasks to threads.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "base/time/deadlines.h"
#include "executor/devices/threads.h"
#include "executor/plan/dependencies.h"
#include "executor/run/binding.h"
#include "executor/run/kernel_watch.h"
#include "executor/run/rank_waits.h"
#include "executor/run/task_error.h"
#include "executor/threads/executor_threads.h"

namespace arbalest {

class Ranks;          // executor/world/ranks.h
struct RankProgress;  // executor/world/standstill.h
class TraceRecorder;

struct SchedulerOptions {
  static constexpr int64_t kNoRest = std::numeric_limits<int64_t>::max();

  int threads = 2;                               // for host tasks, unless `shared` has them
  std::shared_ptr<ExecutorThreads> shared = {};  // threads that serve other plans, too; nullptr: it starts its own
  // Without any completion for so long, and for three times as long as ever before, stalled() is called.
  double stall_seconds = 60;
  int64_t first_iteration = 0;  // the run's iteration at which the base clock begins
  TraceRecorder* trace = nullptr;
  bool nvtx = false;  // issuing and host tasks are NvtxRanges
  // Gets the report. Of several ranks, rank 0 calls it after standstill_seconds already, and so does one that works at
  // what the others may wait for; the others do not.
  std::function<void(const std::string&)> stalled = nullptr;
  PlanPosition from = {};  // the position from which the run goes on
  // Called on the thread of run() at each rest, while nothing of the plan is under way; ticks() and position() say how
  // far the run is. Returns the iteration of the base clock at which the run rests next, or kNoRest; std::nullopt ends
  // the run. With this function, an interrupt brings the run to rest rather than to its end. Empty: it never rests.
  std::function<std::optional<int64_t>()> rest = nullptr;
  int64_t first_rest = kNoRest;
  std::function<bool()> rest_due = nullptr;  // true: rest as soon as possible; called now and then on that thread
  ThreadStarter thread_starter = start_std_thread;  // of threads for host tasks
  // Returns a message about a read that takes longer than it may, which ends the run with this error, or nothing.
  // Called now and then on the thread of run(). Empty: reads are not watched.
  std::function<std::optional<std::string>()> late_read = nullptr;
  // Called with the reason before the process is ended. Threads that read, threads in a call for a GPU, and work of a
  // GPU cannot be ended. If one of them does not end although the run is over, this is called first, then end_process()
  // (base/process.h).
  std::function<void(const std::string&)> process_ends = nullptr;
  // The plan is one process's part: it comes to rest, and to its end, after the same iteration as the others'. Needs
  // `rest`; stop() is for plans of one process. The run ends with an error if a rank is lost.
  std::shared_ptr<Ranks> ranks = {};
  // After so long a rank that stands still is lost (Standstill): at a task of a CPU device, and at one of the host. A
  // rank whose kernel on a CPU device computes for several times as long ends (KernelWatch).
  double standstill_seconds = 20, host_standstill_seconds = 200;
};

// Warns with the report: for SchedulerOptions::stalled.
void warn_of_stall(const std::string& report);

class Scheduler final : private CompletionSink, private Issuer {
 public:
  // The functions of host tasks, called once for each instance. Parallel to the plan's tasks; empty for device tasks.
  using HostFunctions = Table<TaskId, std::function<void(int64_t instance)>>;

  // Throws RunError if the system refuses the threads that a run needs.
  Scheduler(const Binding& binding, HostFunctions host, SchedulerOptions options);

  // Runs the plan to its end, or until a stop is requested; batches that were already read are still trained then.
  // Rethrows the first error of a task, with the node or task, device, learner and iteration, once everything under way
  // has ended.
  void run(const std::stop_token& stop = {});

  // Ends the run after the batches already read. Host tasks may call it.
  void stop() { end_.requested.store(true); }
  // Brings the run to rest at once: no validation ends after the one whose end calls this. Only host tasks call it.
  void rest();

  // Ends an instance of a deferred host task, which takes no thread while it waits. Any thread may call it, once the
  // task's function has begun.
  void finish(TaskId task, int64_t instance);
  // The same if it fails: the run ends with the error.
  void fail(TaskId task, int64_t instance, std::exception_ptr error) {
    const Active active(*this);
    failed(task, instance, std::move(error));
  }

  // Ends the run with an error, which run() throws. Any thread may call it.
  void fail(std::exception_ptr error) {
    const Active active(*this);
    failed(kNone, 0, std::move(error));
  }

  // Training's batches that were filled after all else that their copies to devices wait for.
  int64_t late_batches() const { return counts_.late_batches.load(std::memory_order_relaxed); }

  // Iterations of clock 0 that ran: its ticks, or fewer after stop().
  int64_t iterations() const { return ticks(0); }
  int64_t ticks(ClockId clock) const { return dependencies_.limit(clock); }
  PlanPosition position() const { return dependencies_.position(); }      // at rest, or after run()
  int64_t ended(TaskId task) const { return dependencies_.ended(task); }  // instances of a task, however run() ended

 private:
  struct Times {
    int64_t ready = -1, issued = -1;
  };

  void completed(TaskId task, int64_t instance, int64_t started, int64_t ended) override;
  void failed(TaskId task, int64_t instance, std::exception_ptr error) override;
  void dispatch(TaskId task, int64_t instance) noexcept;
  void issue(TaskId task, int64_t instance) override;
  void run_host(TaskId task, int64_t instance);
  void come_to_rest();
  TimedLook end_process_in_time();
  // Hand-over from thread to thread does not rest on what TBB's queues happen to order. The caller's writes are
  // released by enter(), and a function that was enqueued after it begins with taken_over().
  void enter() { counts_.active.fetch_add(1, std::memory_order_release); }
  void taken_over() const { (void)counts_.active.load(std::memory_order_acquire); }
  void leave();
  struct Active {  // entered and left, whatever is thrown in between
    explicit Active(Scheduler& scheduler) : scheduler(scheduler) { scheduler.enter(); }
    ~Active() { scheduler.leave(); }
    Active(const Active&) = delete;
    Active& operator=(const Active&) = delete;
    Scheduler& scheduler;
  };
  struct Listening {  // to calls that do not return
    explicit Listening(Scheduler& scheduler);
    ~Listening() { calls_.listen(std::move(before_)); }
    Listening(const Listening&) = delete;
    Listening& operator=(const Listening&) = delete;

   private:
    CallWatch& calls_;
    CallWatch::Listener before_;
  };
  Times& times(TaskId task, int64_t instance) { return times_[size_t(task) * kTimes + size_t(instance) % kTimes]; }
  void wait(const std::stop_token& stop);
  void look_up(bool interrupted);
  void look_up_with_others(bool interrupted);
  void agree_on_rest(bool holds);
  void end_stretch();
  bool goes_on();
  void check();
  void look_for_late_read();
  std::optional<std::string> late_kernel();
  void look_for_late_kernel();
  void look_for_stall();
  [[noreturn]] void end_process(std::string message);
  std::string describe_waiting() const;
  RankProgress progress() const;
  std::string kernel_under_way(TaskId task) const;
  bool has_gpus() const;
  std::string error_place(TaskId task, int64_t instance) const;
  std::string place_of(TaskId task, int64_t instance) const;

  static constexpr size_t kTimes = 64;  // instances of a task under way at once, at most

  const Binding& binding_;
  const Plan& plan_;
  HostFunctions host_;
  SchedulerOptions options_;
  Dependencies dependencies_;
  std::vector<Times> times_;
  Table<TaskId, uint8_t> on_host_;
  struct Counts {
    std::atomic<int64_t> active{0};       // functions of ours that are running or enqueued
    std::atomic<int64_t> at_host{0};      // tasks of the host that are running
    std::atomic<int64_t> completions{0};  // for the stall report
    std::atomic<int64_t> late_batches{0};
  };
  Counts counts_;
  struct End {
    std::atomic<bool> requested{false}, failed{false};
    std::exception_ptr error;  // the first one; under the mutex
  };
  End end_;
  std::mutex mutex_;
  std::condition_variable changed_;
  struct Phase {
    bool at_rest = false;   // come_to_rest() has been
    bool stopping = false;  // the run ends; what follows is of the thread of run() alone
    bool resting = false;   // it rests at the next opportunity
    // With other processes, from one rest to the next. Each gives one answer: how far it cannot but run.
    int64_t stretch = 0;
    bool asked = false, answered = false;
    std::atomic<bool> holding{false};  // nothing fires until all answers are there
  };
  Phase phase_;
  struct Watched {
    std::unique_ptr<RankWaits> waits;  // nullptr: no other ranks
    std::vector<KernelWatch> kernels;  // parallel to Binding::all_queues()
    // Completions at the latest look, seconds without another one, and the most of these so far.
    int64_t completions = -1;
    std::chrono::steady_clock::time_point last;
    double still = 0, longest = 0;
    bool reported = false;
  };
  Watched watched_;
  const std::shared_ptr<ExecutorThreads> threads_;  // the last: they use what is above
};

}  // namespace arbalest
