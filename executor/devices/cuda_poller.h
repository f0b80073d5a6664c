// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tells the host what GPUs have completed: events mark the progress of each task, and a thread polls them.

#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "executor/devices/call_watch.h"
#include "executor/devices/device.h"

namespace arbalest {

class TraceRecorder;

// Events of the current device, destroyed with their owner.
class CudaEventList {
 public:
  CudaEventList() = default;
  CudaEventList(const CudaEventList&) = delete;
  CudaEventList& operator=(const CudaEventList&) = delete;
  ~CudaEventList();
  cudaEvent_t add(bool timed);

 private:
  std::vector<cudaEvent_t> events_;
};

// For each task, the events of its latest instances. The device that runs the task records them, and any device may
// wait for them. A collective has one event per device.
struct CudaEvents {
  struct Ring {
    std::vector<cudaEvent_t> events;  // instance major
    size_t per_instance = 1;
    int64_t issued = 0;            // instances issued; used by the issuing thread alone
    std::atomic<int64_t> seen{0};  // how many of these are known to have ended

    const cudaEvent_t* of(int64_t instance) const { return &events[size_t(instance) * per_instance % events.size()]; }
  };
  explicit CudaEvents(size_t tasks) : ring(tasks) {}
  // Called before one more instance of a task is issued. Waits until the earlier instance that used its events is known
  // to have ended, or the run has failed: once recorded again, the events would stand for the later instance.
  void issue_one_more(Ring& of) const;
  cudaEvent_t of(TaskId task, int64_t instance, int32_t device) const {
    const Ring& events = ring[task];
    return events.of(instance)[events.per_instance == 1 ? 0 : size_t(device)];
  }
  Table<TaskId, Ring> ring;
  std::atomic<bool> failed{false};  // true if the run has failed: some ends may never be seen
};

class CudaPoller;

// A thread that lets the pollers of several devices look, in turn, as long as any of them has something under way. It
// sleeps while none has.
class PollingThread {
 public:
  // The most devices that one thread looks at. With more, asking the others would take longer than the pause that each
  // device has between two looks (docs/decisions/0115).
  static constexpr int kDevices = 4;

  // Throws RunError if the system refuses the thread.
  PollingThread();
  ~PollingThread();  // no poller is left
  PollingThread(const PollingThread&) = delete;
  PollingThread& operator=(const PollingThread&) = delete;

  void add(CudaPoller& poller);             // until it has nothing more to look at
  void wake();                              // something has been issued, or is to stop
  void wait_for(const CudaPoller& poller);  // until this is done with it

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Round {
    bool busy = false;
    Time asked;  // when all pollers of the first one's device had looked
  };
  void work();
  void take_arrivals(std::vector<CudaPoller*>& pollers);
  Round look_around(std::vector<CudaPoller*>& pollers);

  std::atomic<uint64_t> woken_{0};
  std::atomic<bool> ending_{false}, arrived_{false};
  std::mutex mutex_;
  std::condition_variable left_;
  std::vector<CudaPoller*> arriving_;
  std::optional<int> current_;  // device; the thread's own
  std::thread thread_;          // the last: it uses the others
};

// Looks at what its lanes have under way, oldest first, and tells the sink what has ended.
class CudaPoller {
 public:
  // The instances that a lane has issued and that have not ended.
  class Pending {
   public:
    struct Instance {
      TaskId task = kNone;
      int64_t instance = 0;
      int64_t issued = -1;               // time of issue on the trace's clock; −1: there is no trace
      CudaEvents::Ring* ring = nullptr;  // of the task; the time of an instance's first event counts
    };

    // An instance that has not ended by now does not count as completed, whatever its events say later.
    void cut() { cut_.store(true); }

   private:
    friend class CudaPoller;
    static constexpr size_t kCapacity = 1024;
    std::atomic<bool> cut_{false};
    std::vector<Instance> ring_ = std::vector<Instance>(kCapacity);
    std::atomic<uint64_t> head_{0}, tail_{0};
  };

  // Throws if the oldest instance that is under way in a lane, a place in `lanes`, will not end. `progress`: since
  // the look before something has ended in any of them.
  using Check = std::function<void(size_t lane, const Pending::Instance& oldest, bool progress)>;

  // `names` are for errors: "cuda:0", one for each event of an instance. `device`: the device whose clock the trace's
  // times come from. `check` is called now and then for every lane with something under way, until it throws. `caller`:
  // stands for `thread` in its calls, which are watched. The thread may serve other pollers of the device as well.
  struct Watched {
    CompletionSink& sink;
    TraceRecorder* trace;
    CallWatch::Caller& caller;
    Check check;
  };
  CudaPoller(std::vector<std::string> names, int device, std::vector<Pending*> lanes, Watched watched,
             std::shared_ptr<PollingThread> thread);
  ~CudaPoller() { stop(drain_deadline()); }

  // One thread a lane at a time. Throws RunError if too much is under way.
  void push(Pending& lane, const Pending::Instance& instance);
  // Returns once everything has ended, or at the deadline; after a sticky error at once.
  void stop(Deadline until);
  // After stop(): something has not ended, and the device has not failed. What it uses cannot be given back.
  bool under_way() const { return under_way_; }

 private:
  friend class PollingThread;
  struct Look {
    bool busy, goes_on;
  };
  Look look_around(bool enters) noexcept;
  bool look(bool enters);
  bool may_take_longer();
  bool poll_head(Pending& lane);
  bool leaves_to_devices(const Pending::Instance& failed);
  bool poll_events(const Pending::Instance& instance, cudaError_t& state, size_t& where, int64_t& ended) const;
  std::vector<std::optional<Pending::Instance>> oldest() const;  // by lane
  DeviceError error_of(cudaError_t state, size_t where, const Pending::Instance& asked) const;
  void check_oldest();

  // The trace's times of events: by how long they come after an origin, which follows now and then.
  class Clock {
   public:
    explicit Clock(TraceRecorder& trace);  // of the current device
    ~Clock() { cudaStreamDestroy(stream_); }
    Clock(const Clock&) = delete;
    Clock& operator=(const Clock&) = delete;
    cudaError_t query(cudaEvent_t event, int64_t& ended) const;  // cudaEventQuery(), with the time
    void advance();

   private:
    std::optional<int64_t> record_origin();

    TraceRecorder& trace_;
    CudaEventList events_;
    cudaStream_t stream_ = nullptr;
    std::array<cudaEvent_t, 2> origin_ = {};  // the one in use, the one before
    int64_t origin_ns_ = 0;                   // the trace's time at origin_[0]
    int64_t origin_age_ = 0;
  };

  const std::vector<std::string> names_;
  const int device_;
  const std::vector<Pending*> lanes_;
  CompletionSink& sink_;
  CallWatch::Caller& caller_;
  Check check_;                 // none once it has thrown
  std::optional<Clock> clock_;  // with a trace, until stop()
  std::atomic<bool> stopping_{false};
  bool is_left_ = false;                    // under the thread's mutex: it is done with this
  Deadline drain_until_;                    // once stopping_; then the thread's own
  struct Seen {                             // by the thread alone
    bool progress = false, broken = false;  // something has ended since the last check; something has failed
    int looks = 0;
    std::optional<std::chrono::steady_clock::time_point> failing;  // since when a collective is known to have failed
  };
  Seen seen_;
  bool under_way_ = false;
  const std::shared_ptr<PollingThread> thread_;
};

}  // namespace arbalest
