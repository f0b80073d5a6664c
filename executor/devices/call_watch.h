// SPDX-License-Identifier: Apache-2.0
#pragma once
// Calls for GPUs that do not return. The thread that has made one cannot be ended, and calls that other threads make
// for the same GPU may wait for it. So all of them are looked at by a thread that makes none (base/time/deadlines.h).

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/time/deadlines.h"
#include "executor/devices/hang_watch.h"

namespace arbalest {

class CallWatch {
 public:
  using Seconds = HangWatch::Seconds;

  // Makes calls for one device, or for several at once; one thread at a time.
  class Caller {
   public:
    Caller(std::string call, std::vector<std::atomic<int>*> loading, Seconds limit)
        : call_(std::move(call)), loading_(std::move(loading)), watch_(limit) {}
    // Sets the task and instance that the call under way is for, if one call serves several of them in turn.
    void about(TaskId task, int64_t instance) {
      task_.store(task, std::memory_order_relaxed);
      instance_.store(instance, std::memory_order_relaxed);
    }

   private:
    friend class CallWatch;
    const std::string call_;                        // "a call of the driver for cuda:0, cuda:1"
    const std::vector<std::atomic<int>*> loading_;  // for each device, the number of Loadings
    std::atomic<int64_t> count_{0};                 // calls begun and calls ended: odd while one is under way
    std::atomic<TaskId> task_{kNone};
    std::atomic<int64_t> instance_{-1};
    HangWatch watch_;   // used by the watching thread alone, as is told_
    int64_t told_ = 0;  // value of count_ for the call that was reported last
  };

  // One call, or several without anything in between that may take long: under way until this is gone.
  class Call {
   public:
    explicit Call(Caller& caller, TaskId task = kNone, int64_t instance = -1) : caller_(caller) {
      caller_.about(task, instance);
      caller_.count_.fetch_add(1, std::memory_order_release);
    }
    ~Call() { caller_.count_.fetch_add(1, std::memory_order_release); }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Caller& caller_;
  };

  // While an instance exists, calls for the caller's devices, from any thread, may take ten times as long: only a tenth
  // of the time counts. Loading and compiling a module holds a lock of the driver, so other threads' calls wait for it.
  class Loading {
   public:
    explicit Loading(const Caller& caller) : loading_(caller.loading_) {
      for (std::atomic<int>* loading : loading_) loading->fetch_add(1);
    }
    ~Loading() {
      for (std::atomic<int>* loading : loading_) loading->fetch_sub(1);
    }
    Loading(const Loading&) = delete;
    Loading& operator=(const Loading&) = delete;

   private:
    const std::vector<std::atomic<int>*>& loading_;
  };

  // A call that has been under way for longer than the limit.
  struct Late {
    std::string message;  // "a call of the driver for cuda:0 has not returned for 20 s"
    TaskId task = kNone;  // that the call is for
    int64_t instance = -1;
  };

  // Functions that are called on the watching thread when a call is late.
  struct Listener {
    std::function<void(const Late&)> late;  // once for each call
    // Called if the call has still not returned after another `grace`, before end_process() (base/process.h), with a
    // message that names all calls that are late by then.
    std::function<void(const std::string& message)> process_ends;
  };

  // Time in which the process itself stood still does not count: see HangWatch.
  explicit CallWatch(double limit, Seconds grace = Seconds{5}) : limit_(limit), grace_(grace) {}
  ~CallWatch() = default;
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;

  // Adds a caller for these devices ("cuda:0"), whose calls messages name as "CALL for DEVICES". The caller lives as
  // long as this object. Any thread may call add(); from the first call on, callers are looked at. Throws RunError if
  // the system refuses the thread for it.
  Caller& add(const std::vector<std::string>& devices, std::string_view call = "a call of the driver");

  // Sets the listener and returns the previous one, which is not called any more after this has returned.
  Listener listen(Listener listener);

  double limit() const { return limit_.count(); }

 private:
  void look();
  bool is_late(Caller& caller, HangWatch::Time now);
  std::string message_of(const std::vector<std::string>& calls) const;

  const Seconds limit_, grace_;
  std::mutex mutex_;
  std::map<std::string, std::atomic<int>> loading_;  // by device: how many Loading there are
  std::list<Caller> callers_;
  Listener listener_;
  TimedLook watching_;  // last: it uses the others
};

}  // namespace arbalest
