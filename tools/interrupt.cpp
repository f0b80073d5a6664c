#include "tools/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>

namespace arbalest {
namespace {

// A signal handler reaches static storage only.
std::atomic<bool> interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free);

constexpr int kSignals[] = {SIGINT, SIGTERM};

// Async-signal-safe: an atomic, write(), sigaction() and raise().
void on_signal(int signal) {
  const int saved = errno;
  if (interrupted.exchange(true)) {
    struct sigaction fallback = {};
    fallback.sa_handler = SIG_DFL;
    sigaction(signal, &fallback, nullptr);
    raise(signal);  // delivered once this handler returns
    errno = saved;
    return;
  }
  constexpr char kMessage[] =
      "\narbalest: ending after the batches already read; once more to stop at once, without saving\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
  errno = saved;
}

}  // namespace

InterruptHandler::InterruptHandler() {
  interrupted = false;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : kSignals) sigaction(signal, &action, nullptr);
}

InterruptHandler::~InterruptHandler() {
  struct sigaction fallback = {};
  fallback.sa_handler = SIG_DFL;
  for (const int signal : kSignals) sigaction(signal, &fallback, nullptr);
}

const std::atomic<bool>& InterruptHandler::requested() {
  return interrupted;
}

}  // namespace arbalest
