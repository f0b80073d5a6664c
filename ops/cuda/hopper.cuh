// SPDX-License-Identifier: Apache-2.0
#pragma once
// Instructions of Hopper GPUs, compute capability 9.0: tiles that the copy engine fetches, and matrix units that
// multiply them straight from shared memory. Compiled for sm_90a; elsewhere what uses them must not be run.

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "ops/cuda/matrix_unit.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define ARBALEST_ASM(...) asm volatile(__VA_ARGS__)
#else
#define ARBALEST_ASM(...) __trap()
#endif

namespace arbalest::cuda::hopper {

__device__ inline void init_barrier(uint32_t barrier, int arrivals) {
  ARBALEST_ASM("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
// Before other threads, and the copy engine, use barriers that this one has initialised.
__device__ inline void fence_barriers() {
  ARBALEST_ASM("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Before the copy engine or the matrix units read, or the engine overwrites, what this thread has written.
__device__ inline void fence_writes() {
  ARBALEST_ASM("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void expect_bytes(uint32_t barrier, int bytes) {
  ARBALEST_ASM("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ inline void arrive(uint32_t barrier) {
  ARBALEST_ASM("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void wait(uint32_t barrier, int phase) {
  ARBALEST_ASM(
      "{\n"
      ".reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(phase)
      : "memory");
}

// A box of the matrix that `map` describes, from (column, row) on.
__device__ inline void fetch(uint32_t to, const CUtensorMap& map, int column, int row, uint32_t barrier) {
  ARBALEST_ASM(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}

// Fetches a box of the images (N,H,W,C) that `map` describes, from (n, row, column, channel) on.
__device__ inline void fetch(uint32_t to, const CUtensorMap& map, int channel, int column, int row, int n,
                             uint32_t barrier) {
  ARBALEST_ASM(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(to),
      "l"(&map), "r"(channel), "r"(column), "r"(row), "r"(n), "r"(barrier)
      : "memory");
}

// A stage of a ring, and the parity of its turn.
struct Turn {
  int stage = 0, parity = 0;

  __device__ Turn after(int steps, int stages) const {
    Turn turn = {stage + steps, parity};
    if (turn.stage >= stages) turn.stage -= stages, turn.parity ^= 1;
    return turn;
  }
};

// A ring of stages in shared memory: one thread has the copy engine fill them, and warps use them up, turn after turn.
// Each stage has a barrier for its bytes, `full`, and one for the warps that are done with it, `empty`.
struct Ring {
  const uint32_t full, empty, end;  // addresses of barriers, 8 bytes a stage, and the address after them

  __device__ Ring(uint32_t barriers, int stages)
      : full(barriers), empty(barriers + stages * 8), end(barriers + stages * 16) {}

  // By one thread, before fence_barriers(): for `warps` that use a stage up.
  __device__ void init(int stages, int warps) const {
    for (int stage = 0; stage < stages; ++stage) {
      init_barrier(full + stage * 8, 1);
      init_barrier(empty + stage * 8, warps);
    }
  }
  // By the thread that fills: fetch(barrier) brings `bytes`.
  template <typename Fetch>
  __device__ void fill(int stage, int bytes, const Fetch& fetch) const {
    expect_bytes(full + stage * 8, bytes);
    fetch(full + stage * 8);
  }
  // By a thread of its own that fills: until the stage's turn before has been used up.
  __device__ void wait_empty(Turn turn) const { wait(empty + turn.stage * 8, turn.parity ^ 1); }
  __device__ void wait_full(Turn turn) const { wait(full + turn.stage * 8, turn.parity); }
  // By every thread of a warp that is done with the stage.
  __device__ void release(int stage) const {
    if (threadIdx.x % 32 == 0) arrive(empty + stage * 8);
  }
  // The same where the block's first thread fills: once all warps have released it, if there is more, by fill(stage).
  template <typename Fill>
  __device__ void recycle(Turn turn, bool more, const Fill& fill) const {
    release(turn.stage);
    if (threadIdx.x != 0 || !more) return;
    wait(empty + turn.stage * 8, turn.parity);
    fill(turn.stage);
  }
};

// Descriptor of a matrix in shared memory with rows of 128 bytes, a swizzle of 128 bytes and no gaps between rows. It
// holds the start, the stride byte offset of 1024 (eight rows) and `leading`, the bytes between blocks of 64 columns.
// `leading` matters only if the columns are the dimension that is not summed over.
__device__ inline uint64_t descriptor(uint32_t address, int leading) {
  return uint64_t((address & 0x3ffff) >> 4) | uint64_t(leading >> 4) << 16 | uint64_t(1024 >> 4) << 32 |
         uint64_t{1} << 62;
}

// Keeps the compiler from moving accesses to `sum` across this point: writes before products begin, and reads after
// they have been waited for.
template <int Count>
__device__ inline void hold(float (&sum)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(sum[i])::"memory");
}

__device__ inline void begin_products() {
  ARBALEST_ASM("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void commit_products() {
  ARBALEST_ASM("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int Pending>
__device__ inline void wait_for_products() {
  ARBALEST_ASM("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

#define ARBALEST_SUMS8(s, i)                                                                                  \
  "+f"(s[i]), "+f"(s[i + 1]), "+f"(s[i + 2]), "+f"(s[i + 3]), "+f"(s[i + 4]), "+f"(s[i + 5]), "+f"(s[i + 6]), \
      "+f"(s[i + 7])
#define ARBALEST_SUMS32(s, i) \
  ARBALEST_SUMS8(s, i), ARBALEST_SUMS8(s, i + 8), ARBALEST_SUMS8(s, i + 16), ARBALEST_SUMS8(s, i + 24)

// sum += a (64 × 16) · b (16 × 64 or × 128). Each is stored with what is summed over along its rows, or, Transposed,
// down its columns.
template <bool kTransposedA, bool kTransposedB>
__device__ inline void multiply(float (&sum)[32], uint64_t a, uint64_t b) {
  ARBALEST_ASM(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
      "%30,%31}, %32, %33, 1, 1, 1, %34, %35;"
      : ARBALEST_SUMS32(sum, 0)
      : "l"(a), "l"(b), "n"(kTransposedA), "n"(kTransposedB));
}
template <bool kTransposedA, bool kTransposedB>
__device__ inline void multiply(float (&sum)[64], uint64_t a, uint64_t b) {
  ARBALEST_ASM(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"
      "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,"
      "%58,%59,%60,%61,%62,%63}, %64, %65, 1, 1, 1, %66, %67;"
      : ARBALEST_SUMS32(sum, 0), ARBALEST_SUMS32(sum, 32)
      : "l"(a), "l"(b), "n"(kTransposedA), "n"(kTransposedB));
}

// 16 pixels of 16 channels, of a warp, as bfloat16: lane l gives the address of eight channels of pixel l % 16, the
// second eight if l ≥ 16.
__device__ inline void store_matrices(uint32_t address, const float* sum) {
  [[maybe_unused]] uint32_t pair[4];  // as on devices that only trap
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(sum[i * 2], sum[i * 2 + 1]);
    pair[i] = reinterpret_cast<const uint32_t&>(both);
  }
  ARBALEST_ASM("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(pair[0]),
               "r"(pair[1]), "r"(pair[2]), "r"(pair[3])
               : "memory");
}

// A barrier of `threads` of the block's threads, by number.
template <int Threads>
__device__ inline void meet(int number) {
  ARBALEST_ASM("bar.sync %0, %1;" ::"r"(number), "n"(Threads) : "memory");
}

}  // namespace arbalest::cuda::hopper

#undef ARBALEST_SUMS8
#undef ARBALEST_SUMS32
#undef ARBALEST_ASM
