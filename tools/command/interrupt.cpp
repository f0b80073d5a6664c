// SPDX-License-Identifier: Apache-2.0
#include "tools/command/interrupt.h"

#include <poll.h>
#include <semaphore.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <iterator>

namespace arbalest {
namespace {

// A signal handler reaches static storage only.
std::atomic<bool> interrupted{false};
std::atomic<int64_t> since{0};  // ms
std::atomic<int> first{0};      // signal
std::atomic<const char*> message{nullptr};
sem_t asked;  // posted by the first signal, and when the handler ends
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free &&
              std::atomic<int>::is_always_lock_free && std::atomic<const char*>::is_always_lock_free);

constexpr int64_t kTogether = 500;  // ms

// Batch queues tell with one of the last three that a job's time is nearly over.
constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU};
struct sigaction before[std::size(kSignals)];  // what the handler took the place of

// Async-signal-safe: atomics, clock_gettime(), poll(), strlen(), write(), sem_post(), sigaction()
// and raise().
void on_signal(int signal) {
  const int saved = errno;
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t milliseconds = int64_t(now.tv_sec) * 1000 + now.tv_nsec / 1'000'000;
  if (interrupted.exchange(true)) {
    // timeout and other wrappers signal a process and then its group: that is one interrupt. Past its limit of
    // processor time a process gets SIGXCPU every second.
    if (signal == SIGXCPU || milliseconds - since.load() < kTogether) return;
    struct sigaction fallback = {};
    fallback.sa_handler = SIG_DFL;
    sigaction(signal, &fallback, nullptr);
    raise(signal);  // delivered once this handler returns
    errno = saved;
    return;
  }
  since = milliseconds;
  first = signal;
  sem_post(&asked);
  const char* const text = message;
  pollfd terminal = {STDERR_FILENO, POLLOUT, 0};  // one that has been stopped would hold up the handler
  [[maybe_unused]] const ssize_t written =
      poll(&terminal, 1, 0) == 1 ? ::write(STDERR_FILENO, text, std::strlen(text)) : 0;
  errno = saved;
}

}  // namespace

InterruptHandler::InterruptHandler(const char* told) {
  message = told;
  interrupted = false;
  first = 0;
  sem_init(&asked, 0, 0);
  requesting_ = std::thread([this] {
    while (sem_wait(&asked) != 0) {  // a signal that this thread handles ends the wait
    }
    if (interrupted) source_.request_stop();
  });
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    sigaction(kSignals[i], &action, &before[i]);
    const bool nohup = kSignals[i] == SIGHUP && before[i].sa_handler == SIG_IGN;
    if (nohup) sigaction(SIGHUP, &before[i], nullptr);
  }
}

InterruptHandler::~InterruptHandler() {
  for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &before[i], nullptr);
  sem_post(&asked);
  requesting_.join();
  sem_destroy(&asked);
}

bool InterruptHandler::requested() {
  return interrupted;
}

std::string InterruptHandler::signal_name() {
  const char* name = first == 0 ? nullptr : sigabbrev_np(first);
  return name == nullptr ? "" : std::string("SIG") + name;
}

}  // namespace arbalest
