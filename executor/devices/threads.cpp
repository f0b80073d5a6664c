#include "executor/devices/threads.h"

#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <system_error>
#include <utility>
#include <vector>

#include "graph/error.h"
#include "ops/address_space.h"

namespace arbalest {
namespace {

// Bytes of address space that the stack of a thread takes, the page that guards it included.
size_t stack_bytes() {
  pthread_attr_t attributes;
  size_t stack = size_t{8} << 20, guard = 0;
  if (pthread_getattr_default_np(&attributes) != 0) return stack;
  pthread_attr_getstacksize(&attributes, &stack);
  pthread_attr_getguardsize(&attributes, &guard);
  pthread_attr_destroy(&attributes);
  return stack + guard;
}

[[noreturn]] void refuse(const std::string& what, const std::string& why) {
  throw RunError(
      fmt::format("no thread could be started for {}: {}; the limits on processes (ulimit -u) and on "
                  "address space (ulimit -v) count threads too, and --threads asks for fewer",
                  what, why));
}

}  // namespace

std::thread start_std_thread(std::function<void()> work) {
  return std::thread(std::move(work));
}

std::thread start_thread(const std::string& what, std::function<void()> work, const ThreadStarter& starter) {
  try {
    return starter(std::move(work));
  } catch (const std::system_error& error) {
    refuse(what, error.code().message());
  }
}

void expect_threads(int count, const std::string& what, const ThreadStarter& starter) {
  {
    struct Waiting {
      std::atomic<bool> go{false};
      std::vector<std::thread> threads;
      ~Waiting() {
        go.store(true);
        go.notify_all();
        for (std::thread& thread : threads) thread.join();
      }
    } waiting;
    waiting.threads.reserve(size_t(count));
    for (int i = 0; i < count; ++i) {
      waiting.threads.push_back(start_thread(
          what, [&go = waiting.go] { go.wait(false); }, starter));
    }
  }
  // A thread that ends may leave an arena of the allocator behind, 64 MiB where its stack was.
  const size_t bytes = size_t(count) * stack_bytes();
  try {
    const AddressSpace stacks(bytes);
  } catch (const RunError&) {
    refuse(what, fmt::format("there is no room for stacks of {} MiB", bytes >> 20));
  }
}

}  // namespace arbalest
