#include "executor/devices/cuda_poller.h"

#include <fmt/format.h>

#include "executor/devices/threads.h"
#include "executor/trace/trace_recorder.h"
#include "ops/cuda/cuda_context.h"

namespace arbalest {
namespace {

constexpr int kPausesBetweenLooks = 256;  // about 10 µs: queries take the driver's lock, which issuing wants
constexpr int kLooksBetweenChecks = 1000;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  std::this_thread::yield();
#endif
}

}  // namespace

std::shared_ptr<CudaEvents> make_cuda_events(size_t tasks) {
  return std::make_shared<CudaEvents>(tasks);
}

void CudaEvents::Ring::issue_one_more() {
  constexpr std::chrono::seconds kLongest{5};
  const auto most = int64_t(events.size() / per_instance);
  if (++issued - seen.load(std::memory_order_acquire) <= most) return;
  const auto until = std::chrono::steady_clock::now() + kLongest;
  while (issued - seen.load(std::memory_order_acquire) > most && std::chrono::steady_clock::now() < until) pause();
}

CudaEventList::~CudaEventList() {
  for (const cudaEvent_t event : events_) cudaEventDestroy(event);
}

cudaEvent_t CudaEventList::add(bool timed) {
  cudaEvent_t event = nullptr;
  CUDA_CHECK(cudaEventCreateWithFlags(&event, timed ? cudaEventDefault : cudaEventDisableTiming));
  events_.push_back(event);
  return event;
}

CudaPoller::CudaPoller(std::vector<std::string> names, int device, std::vector<Pending*> lanes, CompletionSink& sink,
                       TraceRecorder* trace, Check check)
    : names_(std::move(names)),
      device_(device),
      lanes_(std::move(lanes)),
      sink_(sink),
      trace_(trace),
      check_(std::move(check)) {
  if (trace_) {
    CUDA_CHECK(cudaSetDevice(device_));
    CUDA_CHECK(cudaStreamCreateWithFlags(&clock_stream_, cudaStreamNonBlocking));
    for (cudaEvent_t& origin : origin_) origin = events_.add(true);
    record_origin();
    origin_ns_ = origin_age_;
  }
  thread_ = start_thread("looking for what GPUs have completed", [this] {
    try {
      poll();
    } catch (...) {
      sink_.failed(kNone, -1, std::current_exception());
    }
  });
}

void CudaPoller::stop(Deadline until) {
  if (!thread_.joinable()) return;
  drain_until_ = until;
  stopping_.store(true);
  issued_.fetch_add(1);
  issued_.notify_one();
  thread_.join();
  if (clock_stream_) cudaStreamDestroy(clock_stream_);
  clock_stream_ = nullptr;
}

void CudaPoller::push(Pending& lane, const Pending::Instance& instance) {
  const uint64_t tail = lane.tail_.load(std::memory_order_relaxed);
  if (tail - lane.head_.load(std::memory_order_acquire) == Pending::kCapacity) {
    throw RunError(fmt::format("{}: more than {} instances under way in one lane", names_.front(), Pending::kCapacity));
  }
  lane.ring_[tail % Pending::kCapacity] = instance;
  lane.tail_.store(tail + 1, std::memory_order_release);
  issued_.fetch_add(1, std::memory_order_release);
  issued_.notify_one();
}

// Looks at the oldest instance of every lane, again and again while there is one; sleeps while there is none.
void CudaPoller::poll() {
  cudaSetDevice(device_);
  int looks = 0;
  for (;;) {
    const uint64_t seen = issued_.load(std::memory_order_acquire);
    bool busy = false;
    advance_origin();
    for (Pending* lane : lanes_) busy = poll_head(*lane) || busy;
    if (busy && ++looks % kLooksBetweenChecks == 0 && !stopping_.load(std::memory_order_relaxed)) check_oldest();
    if (stopping_.load()) {
      if (!busy) return;
      if (broken_ || std::chrono::steady_clock::now() > drain_until_) return;
    }
    if (busy) {
      for (int i = 0; i < kPausesBetweenLooks; ++i) pause();
    } else if (!stopping_.load()) {
      issued_.wait(seen, std::memory_order_acquire);
    }
  }
}

// True once all events of the instance have ended, at the trace's time `ended`, or the one at `where` has failed: then
// `state` says how.
bool CudaPoller::poll_events(const Pending::Instance& instance, cudaError_t& state, size_t& where,
                             int64_t& ended) const {
  const cudaEvent_t* events = instance.ring->of(instance.instance);
  for (where = 0; where < instance.ring->per_instance; ++where) {
    if (trace_ && where == 0) {  // one call that asks and tells the time: each takes the driver's lock
      float milliseconds = 0;
      state = cudaEventElapsedTime(&milliseconds, origin_[0], events[0]);
      ended = origin_ns_ + int64_t(double(milliseconds) * 1e6);
    } else {
      state = cudaEventQuery(events[where]);
    }
    if (state == cudaErrorNotReady) return false;
    if (state != cudaSuccess) return true;
  }
  return true;
}

// True while the lane has something under way.
bool CudaPoller::poll_head(Pending& lane) {
  uint64_t head = lane.head_.load(std::memory_order_relaxed);
  while (head != lane.tail_.load(std::memory_order_acquire)) {
    const Pending::Instance pending = lane.ring_[head % Pending::kCapacity];
    cudaError_t state = cudaSuccess;
    size_t where = 0;
    int64_t ended = -1;
    if (!poll_events(pending, state, where, ended)) return true;
    if (state != cudaSuccess) {
      broken_ = true;
      // The device's own poller knows better what failed.
      if (pending.ring->per_instance > 1) std::this_thread::sleep_for(std::chrono::milliseconds(50));
      sink_.failed(pending.task, pending.instance,
                   std::make_exception_ptr(RunError(fmt::format("{}: {}", names_[where], cudaGetErrorString(state)))));
    }
    pending.ring->seen.fetch_add(1, std::memory_order_release);
    lane.head_.store(++head, std::memory_order_release);
    if (state == cudaSuccess) sink_.completed(pending.task, pending.instance, pending.issued, ended);
  }
  return false;
}

void CudaPoller::check_oldest() {
  const Pending& lane = *lanes_[0];
  const uint64_t head = lane.head_.load(std::memory_order_relaxed);
  if (!check_ || head == lane.tail_.load(std::memory_order_acquire)) return;
  const Pending::Instance oldest = lane.ring_[head % Pending::kCapacity];
  try {
    check_(oldest);
  } catch (...) {
    check_ = {};
    sink_.failed(oldest.task, oldest.instance, std::current_exception());
  }
}

// Leaves in origin_age_ when it was, as far as the host can tell, and returns how well it can.
int64_t CudaPoller::record_origin() {
  const int64_t before = trace_->now();
  CUDA_CHECK(cudaEventRecord(origin_[0], clock_stream_));
  CUDA_CHECK(cudaEventSynchronize(origin_[0]));
  const int64_t after = trace_->now();
  origin_age_ = (before + after) / 2;
  return after - before;
}

// Elapsed times are floats of milliseconds: near enough to the origin, they are good to some ten nanoseconds. Every
// GPU's clock drifts by itself, so that the origin follows the host's gently.
void CudaPoller::advance_origin() {
  constexpr int64_t kNearEnough = 200'000'000, kCertain = 50'000;  // ns
  if (!trace_ || trace_->now() - origin_age_ < kNearEnough) return;
  std::swap(origin_[0], origin_[1]);
  const int64_t uncertainty = record_origin();
  float milliseconds = 0;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, origin_[1], origin_[0]));
  origin_ns_ += int64_t(double(milliseconds) * 1e6);
  if (uncertainty < kCertain) origin_ns_ += (origin_age_ - origin_ns_) / 8;
}

}  // namespace arbalest
