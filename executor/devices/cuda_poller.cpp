// SPDX-License-Identifier: Apache-2.0
#include "executor/devices/cuda_poller.h"

#include <fmt/format.h>

#include <algorithm>

#include "executor/devices/threads.h"
#include "executor/trace/trace_recorder.h"
#include "ops/cuda/cuda_context.h"

namespace arbalest {
namespace {

// From one look at a device to the next: queries take the device's lock in the driver, which issuing wants.
constexpr std::chrono::microseconds kBetweenLooks{10};
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

void CudaEvents::issue_one_more(Ring& of) const {
  const auto most = int64_t(of.events.size() / of.per_instance);
  ++of.issued;
  while (of.issued - of.seen.load(std::memory_order_acquire) > most && !failed.load(std::memory_order_relaxed)) pause();
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

PollingThread::PollingThread() {
  thread_ = start_thread("looking for what GPUs have completed", [this] { work(); });
}

PollingThread::~PollingThread() {
  ending_.store(true);
  wake();
  thread_.join();
}

void PollingThread::add(CudaPoller& poller) {
  {
    const std::scoped_lock lock(mutex_);
    arriving_.push_back(&poller);
  }
  arrived_.store(true);
  wake();
}

void PollingThread::wake() {
  woken_.fetch_add(1, std::memory_order_release);
  woken_.notify_one();
}

void PollingThread::wait_for(const CudaPoller& poller) {
  std::unique_lock lock(mutex_);
  left_.wait(lock, [&] { return poller.is_left_; });
}

void PollingThread::work() {
  std::vector<CudaPoller*> pollers;
  for (;;) {
    const uint64_t seen = woken_.load(std::memory_order_acquire);
    take_arrivals(pollers);
    const Round round = look_around(pollers);
    if (ending_.load()) return;
    if (round.busy) {
      // While others were looked at, the first device had its pause.
      while (std::chrono::steady_clock::now() < round.asked + kBetweenLooks) pause();
    } else {
      woken_.wait(seen, std::memory_order_acquire);
    }
  }
}

// Those of one device look one after the other.
void PollingThread::take_arrivals(std::vector<CudaPoller*>& pollers) {
  if (!arrived_.exchange(false)) return;
  const std::scoped_lock lock(mutex_);
  pollers.insert(pollers.end(), arriving_.begin(), arriving_.end());
  arriving_.clear();
  std::stable_sort(pollers.begin(), pollers.end(),
                   [](const CudaPoller* a, const CudaPoller* b) { return a->device_ < b->device_; });
}

PollingThread::Round PollingThread::look_around(std::vector<CudaPoller*>& pollers) {
  Round round;
  std::optional<int> first;
  std::erase_if(pollers, [&](CudaPoller* poller) {
    const int device = poller->device_;
    if (!first) first = device;
    const CudaPoller::Look look = poller->look_around(std::exchange(current_, device) != device);
    if (device == *first) round.asked = std::chrono::steady_clock::now();
    round.busy = round.busy || (look.busy && look.goes_on);
    if (look.goes_on) return false;
    const std::scoped_lock lock(mutex_);
    poller->is_left_ = true;  // its owner may destroy it from here on
    left_.notify_all();
    return true;
  });
  return round;
}

CudaPoller::CudaPoller(std::vector<std::string> names, int device, std::vector<Pending*> lanes, Watched watched,
                       std::shared_ptr<PollingThread> thread)
    : names_(std::move(names)),
      device_(device),
      lanes_(std::move(lanes)),
      sink_(watched.sink),
      caller_(watched.caller),
      check_(std::move(watched.check)),
      thread_(std::move(thread)) {
  if (watched.trace) {
    CUDA_CHECK(cudaSetDevice(device_));
    clock_.emplace(*watched.trace);
  }
  thread_->add(*this);
}

void CudaPoller::stop(Deadline until) {
  if (!stopping_.load()) {
    drain_until_ = until;
    stopping_.store(true);
    thread_->wake();
  }
  thread_->wait_for(*this);
  clock_.reset();
}

void CudaPoller::push(Pending& lane, const Pending::Instance& instance) {
  const uint64_t tail = lane.tail_.load(std::memory_order_relaxed);
  if (tail - lane.head_.load(std::memory_order_acquire) == Pending::kCapacity) {
    throw RunError(fmt::format("{}: more than {} instances under way in one lane", names_.front(), Pending::kCapacity));
  }
  lane.ring_[tail % Pending::kCapacity] = instance;
  lane.tail_.store(tail + 1, std::memory_order_release);
  thread_->wake();
}

// One look at everything. Once it does not go on, the thread is done with this. `enters`: another device may be
// current. An error of a device that is current comes with whatever is asked.
CudaPoller::Look CudaPoller::look_around(bool enters) noexcept {
  bool busy = false;
  try {
    busy = look(enters);
    if (!stopping_.load() || (busy && !seen_.broken && may_take_longer())) return {busy, true};
    under_way_ = busy && !seen_.broken;
  } catch (...) {
    sink_.failed(kNone, -1, std::current_exception());
  }
  return {busy, false};
}

// True while something is under way.
bool CudaPoller::look(bool enters) {
  const CallWatch::Call call(caller_);
  if (enters) cudaSetDevice(device_);  // an error of the device is met below
  bool busy = false;
  if (clock_) clock_->advance();
  for (Pending* lane : lanes_) busy = poll_head(*lane) || busy;
  if (busy && ++seen_.looks % kLooksBetweenChecks == 0 && !seen_.failing &&
      !stopping_.load(std::memory_order_relaxed)) {
    check_oldest();
  }
  return busy;
}

// Once it is to stop: whether what is under way still has time to end. If something has ended there is time for the
// next, too: nothing more is issued, and what ends takes turns.
bool CudaPoller::may_take_longer() {
  const auto now = std::chrono::steady_clock::now();
  if (now > drain_until_) return false;
  if (std::exchange(seen_.progress, false)) drain_until_ = std::max(drain_until_, now + kDrainTime);
  return true;
}

// True once all events of the instance have ended, at the trace's time `ended`, or the one at `where` has failed: then
// `state` says how.
bool CudaPoller::poll_events(const Pending::Instance& instance, cudaError_t& state, size_t& where,
                             int64_t& ended) const {
  const cudaEvent_t* events = instance.ring->of(instance.instance);
  for (where = 0; where < instance.ring->per_instance; ++where) {
    state = clock_ && where == 0 ? clock_->query(events[0], ended) : cudaEventQuery(events[where]);
    if (state == cudaErrorNotReady) return false;
    if (state != cudaSuccess) return true;
  }
  return true;
}

// An error of a kernel comes with whatever is asked for first: every lane's oldest may have met it.
DeviceError CudaPoller::error_of(cudaError_t state, size_t where, const Pending::Instance& asked) const {
  DeviceError::Instances besides;
  for (const std::optional<Pending::Instance>& other : oldest()) {
    if (other && other->task != asked.task) besides.emplace_back(other->task, other->instance);
  }
  return {fmt::format("{}: {} ({})", names_[where], cudaGetErrorString(state), cudaGetErrorName(state)),
          std::move(besides)};
}

// Whether an error of a collective is not to be reported yet: a device's own poller knows better what failed there.
bool CudaPoller::leaves_to_devices(const Pending::Instance& failed) {
  constexpr std::chrono::milliseconds kForDevices{50};
  if (failed.ring->per_instance == 1) return false;
  const auto now = std::chrono::steady_clock::now();
  if (!seen_.failing) seen_.failing = now;
  return now < *seen_.failing + kForDevices;
}

// True while the lane has something under way.
bool CudaPoller::poll_head(Pending& lane) {
  uint64_t head = lane.head_.load(std::memory_order_relaxed);
  while (head != lane.tail_.load(std::memory_order_acquire)) {
    const Pending::Instance pending = lane.ring_[head % Pending::kCapacity];
    cudaError_t state = cudaSuccess;
    size_t where = 0;
    int64_t ended = -1;
    caller_.about(pending.task, pending.instance);
    if (!poll_events(pending, state, where, ended)) return true;
    const bool counts = !lane.cut_.load();  // after the events
    if (state != cudaSuccess) {
      if (leaves_to_devices(pending)) return true;
      seen_.broken = true;
      sink_.failed(pending.task, pending.instance, std::make_exception_ptr(error_of(state, where, pending)));
    }
    seen_.progress = true;
    pending.ring->seen.fetch_add(1, std::memory_order_release);
    lane.head_.store(++head, std::memory_order_release);
    if (state == cudaSuccess && counts) sink_.completed(pending.task, pending.instance, pending.issued, ended);
  }
  return false;
}

std::vector<std::optional<CudaPoller::Pending::Instance>> CudaPoller::oldest() const {
  std::vector<std::optional<Pending::Instance>> all;
  for (const Pending* lane : lanes_) {
    const uint64_t head = lane->head_.load(std::memory_order_relaxed);
    const bool busy = head != lane->tail_.load(std::memory_order_acquire);
    all.push_back(busy ? std::optional(lane->ring_[head % Pending::kCapacity]) : std::nullopt);
  }
  return all;
}

void CudaPoller::check_oldest() {
  const bool progress = std::exchange(seen_.progress, false);
  const auto all = oldest();
  for (size_t lane = 0; lane < all.size() && check_; ++lane) {
    if (!all[lane]) continue;
    try {
      check_(lane, *all[lane], progress);
    } catch (...) {
      check_ = {};
      sink_.failed(all[lane]->task, all[lane]->instance, std::current_exception());
    }
  }
}

CudaPoller::Clock::Clock(TraceRecorder& trace) : trace_(trace) {
  CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  for (cudaEvent_t& origin : origin_) origin = events_.add(true);
  record_origin();
  origin_ns_ = origin_age_;
}

// One call that asks and tells the time: each takes the driver's lock.
cudaError_t CudaPoller::Clock::query(cudaEvent_t event, int64_t& ended) const {
  float milliseconds = 0;
  const cudaError_t state = cudaEventElapsedTime(&milliseconds, origin_[0], event);
  ended = origin_ns_ + int64_t(double(milliseconds) * 1e6);
  return state;
}

// Leaves in origin_age_ when it was, as far as the host can tell, and returns how well it can. A device that hangs
// records nothing.
std::optional<int64_t> CudaPoller::Clock::record_origin() {
  constexpr int64_t kLongest = 100'000'000;  // ns; nothing else is looked at meanwhile
  const int64_t before = trace_.now();
  CUDA_CHECK(cudaEventRecord(origin_[0], stream_));
  int64_t after = before;
  for (cudaError_t state = cudaErrorNotReady; state == cudaErrorNotReady; after = trace_.now()) {
    if (after - before > kLongest) return std::nullopt;
    state = cudaEventQuery(origin_[0]);
    if (state != cudaErrorNotReady) CUDA_CHECK(state);
  }
  origin_age_ = (before + after) / 2;
  return after - before;
}

// Elapsed times are floats of milliseconds: near enough to the origin, they are good to some ten nanoseconds. Every
// GPU's clock drifts by itself, so that the origin follows the host's gently.
void CudaPoller::Clock::advance() {
  constexpr int64_t kNearEnough = 200'000'000, kCertain = 50'000;  // ns
  if (trace_.now() - origin_age_ < kNearEnough) return;
  std::swap(origin_[0], origin_[1]);
  const std::optional<int64_t> uncertainty = record_origin();
  if (!uncertainty) {
    origin_age_ = trace_.now();  // the next attempt comes later: hanging tasks have to be noticed meanwhile
    return std::swap(origin_[0], origin_[1]);
  }
  float milliseconds = 0;
  CUDA_CHECK(cudaEventElapsedTime(&milliseconds, origin_[1], origin_[0]));
  origin_ns_ += int64_t(double(milliseconds) * 1e6);
  if (*uncertainty < kCertain) origin_ns_ += (origin_age_ - origin_ns_) / 8;
}

}  // namespace arbalest
