// SPDX-License-Identifier: Apache-2.0
#include "tests/lanes/lanes.h"

#include <ucontext.h>

#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

namespace arbalest::lanes {
namespace {

constexpr size_t kStackBytes = 128 << 10;

struct Barrier {
  int expected = 0, arrived = 0;
  uint64_t passed = 0;
};

struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack = std::make_unique<char[]>(kStackBytes);
  const Barrier* waits_for = nullptr;
  uint64_t passed = 0;  // of the barrier when it began to wait
  bool ended = false;
};

ucontext_t scheduler;
std::vector<Thread> all_threads;
size_t current = 0;
dim3 block, size;
Barrier of_block, of_warp[kMostWarps];
const std::function<void()>* running = nullptr;
std::exception_ptr thrown;
int bytes = 0;
alignas(128) unsigned char memory[kSharedBytes];

void begin() {
  try {
    (*running)();
  } catch (...) {
    if (!thrown) thrown = std::current_exception();
  }
  all_threads[current].ended = true;
  swapcontext(&all_threads[current].context, &scheduler);
}

void wait(Barrier& barrier) {
  if (++barrier.arrived == barrier.expected) {
    barrier.arrived = 0;
    ++barrier.passed;
    return;
  }
  Thread& thread = all_threads[current];
  thread.waits_for = &barrier;
  thread.passed = barrier.passed;
  swapcontext(&thread.context, &scheduler);
  thread.waits_for = nullptr;
}

void run_block() {
  std::memset(memory, 0xff, sizeof memory);
  of_block = {int(all_threads.size())};
  for (Barrier& warp : of_warp) warp = {kWarp};
  for (Thread& thread : all_threads) {
    thread.ended = false;
    thread.waits_for = nullptr;
    getcontext(&thread.context);
    thread.context.uc_stack = {};
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = kStackBytes;
    thread.context.uc_link = &scheduler;
    makecontext(&thread.context, begin, 0);
  }
  for (size_t left = all_threads.size(); left > 0;) {
    bool moved = false;
    for (current = 0; current < all_threads.size(); ++current) {
      Thread& thread = all_threads[current];
      if (thread.ended || (thread.waits_for != nullptr && thread.waits_for->passed == thread.passed)) continue;
      moved = true;
      swapcontext(&scheduler, &thread.context);
      if (thrown) std::rethrow_exception(std::exchange(thrown, nullptr));
      if (thread.ended) --left;
    }
    if (!moved) throw std::logic_error("threads of a block wait for others that have ended");
  }
}

}  // namespace

void launch(dim3 grid, int threads, int shared, const std::function<void()>& kernel) {
  if (shared > kSharedBytes) throw std::logic_error("a block asks for more shared memory than there is");
  bytes = shared;
  all_threads.resize(size_t(threads));
  size = dim3(unsigned(threads));
  running = &kernel;
  for (block.z = 0; block.z < grid.z; ++block.z) {
    for (block.y = 0; block.y < grid.y; ++block.y) {
      for (block.x = 0; block.x < grid.x; ++block.x) run_block();
    }
  }
}

dim3 thread_index() {
  return dim3(unsigned(current));
}
dim3 block_index() {
  return block;
}
dim3 block_size() {
  return size;
}
void wait_for_block() {
  wait(of_block);
}
void wait_for_warp() {
  wait(of_warp[current / kWarp]);
}
unsigned char* shared_memory() {
  return memory;
}
int shared_bytes() {
  return bytes;
}

}  // namespace arbalest::lanes
