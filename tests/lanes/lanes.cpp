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
  std::unique_ptr<char[]> stack = std::make_unique_for_overwrite<char[]>(kStackBytes);
  const Barrier* waits_for = nullptr;
  uint64_t passed = 0;      // of the barrier when it began to wait
  uint64_t of_cluster = 0;  // passed when it arrived there last
  bool arrived = false;     // there, and has not waited since
  bool ended = false;
};

struct alignas(128) Memory {
  unsigned char bytes[kSharedBytes];
};

struct Block {
  Barrier all, of_warp[kMostWarps];
  std::unique_ptr<Memory> memory = std::make_unique<Memory>();
};

ucontext_t scheduler;
std::vector<Thread> all_threads;  // of a cluster, block after block
std::vector<Block> blocks;        // of the cluster
Barrier of_cluster;
size_t current = 0, block_threads = 0;
dim3 first_block;
const std::function<void()>* running = nullptr;
std::exception_ptr thrown;
int bytes = 0;

Block& own_block() {
  return blocks[current / block_threads];
}

void begin() {
  try {
    (*running)();
    if (all_threads[current].arrived) throw std::logic_error("a thread ends before it has waited for its cluster");
  } catch (...) {
    if (!thrown) thrown = std::current_exception();
  }
  all_threads[current].ended = true;
  swapcontext(&all_threads[current].context, &scheduler);
}

void arrive(Barrier& barrier) {
  if (++barrier.arrived < barrier.expected) return;
  barrier.arrived = 0;
  ++barrier.passed;
}

// Until more have passed than `passed`.
void wait(const Barrier& barrier, uint64_t passed) {
  if (barrier.passed != passed) return;
  Thread& thread = all_threads[current];
  thread.waits_for = &barrier;
  thread.passed = passed;
  swapcontext(&thread.context, &scheduler);
  thread.waits_for = nullptr;
}

void meet(Barrier& barrier) {
  const uint64_t passed = barrier.passed;
  arrive(barrier);
  wait(barrier, passed);
}

void run_cluster() {
  of_cluster = {int(all_threads.size())};
  for (Block& block : blocks) {
    std::memset(block.memory->bytes, 0xff, kSharedBytes);
    block.all = {int(block_threads)};
    for (Barrier& warp : block.of_warp) warp = {kWarp};
  }
  for (Thread& thread : all_threads) {
    thread.ended = thread.arrived = false;
    thread.waits_for = nullptr;
    getcontext(&thread.context);
    thread.context.uc_stack = {};
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = kStackBytes;
    thread.context.uc_link = &scheduler;
    makecontext(&thread.context, begin, 0);
  }
  // A block goes on as far as it can before the next one: what it declares __shared__ is all blocks'.
  for (size_t left = all_threads.size(); left > 0;) {
    const size_t before = left;
    bool any = false;
    for (size_t block = 0; block < blocks.size(); ++block) {
      for (bool moved = true; moved;) {
        moved = false;
        for (current = block * block_threads; current < (block + 1) * block_threads; ++current) {
          Thread& thread = all_threads[current];
          if (thread.ended || (thread.waits_for != nullptr && thread.waits_for->passed == thread.passed)) continue;
          any = moved = true;
          swapcontext(&scheduler, &thread.context);
          if (thrown) std::rethrow_exception(std::exchange(thrown, nullptr));
          if (thread.ended) --left;
        }
      }
    }
    if (!any && left == before) throw std::logic_error("threads wait for others that have ended");
  }
}

}  // namespace

void launch(dim3 grid, int threads, int shared, const std::function<void()>& kernel, int cluster) {
  if (shared > kSharedBytes) throw std::logic_error("a block asks for more shared memory than there is");
  if (grid.y % unsigned(cluster) != 0) throw std::logic_error("clusters do not divide the blocks");
  bytes = shared;
  block_threads = size_t(threads);
  blocks.resize(size_t(cluster));
  all_threads.resize(size_t(threads) * size_t(cluster));
  running = &kernel;
  for (first_block.z = 0; first_block.z < grid.z; ++first_block.z) {
    for (first_block.y = 0; first_block.y < grid.y; first_block.y += unsigned(cluster)) {
      for (first_block.x = 0; first_block.x < grid.x; ++first_block.x) run_cluster();
    }
  }
}

dim3 thread_index() {
  return dim3(unsigned(current % block_threads));
}
dim3 block_index() {
  return dim3(first_block.x, first_block.y + unsigned(current / block_threads), first_block.z);
}
dim3 block_size() {
  return dim3(unsigned(block_threads));
}
void wait_for_block() {
  meet(own_block().all);
}
void wait_for_warp() {
  meet(own_block().of_warp[current % block_threads / kWarp]);
}
void arrive_in_cluster() {
  if (all_threads[current].arrived) throw std::logic_error("a thread arrives before it has waited for its cluster");
  all_threads[current].arrived = true;
  all_threads[current].of_cluster = of_cluster.passed;
  arrive(of_cluster);
}
void wait_for_cluster() {
  wait(of_cluster, all_threads[current].of_cluster);
  all_threads[current].arrived = false;
}
unsigned char* shared_memory() {
  return own_block().memory->bytes;
}
const unsigned char* shared_memory_of(int rank) {
  return blocks.at(size_t(rank)).memory->bytes;
}
int shared_bytes() {
  return bytes;
}

}  // namespace arbalest::lanes
