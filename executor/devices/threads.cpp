// SPDX-License-Identifier: Apache-2.0
#include "executor/devices/threads.h"

#include <fmt/format.h>

#include <atomic>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/memory/address_space.h"
#include "base/process.h"
#include "base/setting.h"

namespace arbalest {

std::thread start_std_thread(std::function<void()> work) {
  return std::thread(std::move(work));
}

void refuse_thread(const std::string& what, std::error_code error) {
  throw RunError(
      fmt::format("no thread could be started for {}: {}; the limits on processes (ulimit -u) and on "
                  "address space (ulimit -v) count threads too, and {} asks for fewer",
                  what, error.message(), name_of(SettingKey::Threads)));
}

std::thread start_thread(const std::string& what, std::function<void()> work, const ThreadStarter& starter) {
  try {
    return starter([what, work = std::move(work)] {
      name_thread(what);
      work();
    });
  } catch (const std::system_error& error) {
    refuse_thread(what, error.code());
  }
}

void expect_threads(int count, const std::string& what, const ThreadStarter& starter) {
  share_arenas();  // or these threads leave less room than they found
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

}  // namespace arbalest
