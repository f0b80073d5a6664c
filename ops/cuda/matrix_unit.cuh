// SPDX-License-Identifier: Apache-2.0
#pragma once
// Instructions of compute capability 8.0: copies to shared memory in the background, matrices from there, and their
// products.

#include <cuda_bf16.h>

#include <cstdint>

// Older devices lack these instructions. They make copies of 16 bytes at once, and never run kernels with others.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define ARBALEST_ASM(...) __trap()
#else
#define ARBALEST_ASM(...) asm volatile(__VA_ARGS__)
#endif

namespace arbalest::cuda {

__device__ inline uint32_t shared_address(const void* p) {
  return uint32_t(__cvta_generic_to_shared(p));
}

// 16 bytes from global to shared memory, in the background if the device can; zeros if not `there`.
__device__ inline void copy_async(void* to, const void* from, bool there) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
  *static_cast<uint4*>(to) = there ? *static_cast<const uint4*>(from) : uint4{};
#else
  const int bytes = there ? 16 : 0;
  ARBALEST_ASM("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes));
#endif
}
// The same for four bytes.
__device__ inline void copy_word_async(void* to, const void* from, bool there) {
  const int bytes = there ? 4 : 0;
  ARBALEST_ASM("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes));
}
__device__ inline void commit_copies() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  ARBALEST_ASM("cp.async.commit_group;");
#endif
}
template <int Pending>
__device__ inline void wait_for_copies() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  ARBALEST_ASM("cp.async.wait_group %0;" ::"n"(Pending));
#endif
}

// Four 8 × 8 matrices; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void load_matrices(uint32_t (&r)[4], uint32_t address) {
  ARBALEST_ASM("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
__device__ inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
  ARBALEST_ASM("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}
// Transposes an 8 × 8 matrix. Lanes 4i to 4i + 3 hold row i, two numbers each.
__device__ inline uint32_t transpose(uint32_t pair) {
  uint32_t turned = 0;
  ARBALEST_ASM("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(pair));
  return turned;
}
// (16 × 16) · (16 × 8)
__device__ inline void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  ARBALEST_ASM(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A matrix in shared memory, and its parts of 16 × 16 as operands of a product; all threads of a warp call together. A
// right operand is for two products. Turned, rows of the operand are columns here.
struct SharedMatrix {
  __nv_bfloat16* element;
  int stride;

  __device__ __nv_bfloat16* at(int row, int column) const { return element + row * stride + column; }
  __device__ void left(uint32_t (&a)[4], int row, int column) const { load_matrices(a, by_rows(row, column)); }
  __device__ void left_turned(uint32_t (&a)[4], int row, int column) const {
    load_matrices_transposed(a, by_columns(column, row));
  }
  __device__ void right(uint32_t (&b)[4], int row, int column) const {
    load_matrices_transposed(b, by_rows(row, column));
  }
  __device__ void right_turned(uint32_t (&b)[4], int row, int column) const {
    load_matrices(b, by_columns(row, column));
  }

 private:
  // The lane's row of the four matrices of 8 × 8, one above the other first, or side by side first.
  __device__ uint32_t by_rows(int row, int column) const {
    const int lane = int(threadIdx.x) % 32;
    return shared_address(at(row + lane % 16, column + lane / 16 * 8));
  }
  __device__ uint32_t by_columns(int row, int column) const {
    const int lane = int(threadIdx.x) % 32;
    return shared_address(at(row + lane / 16 * 8 + lane % 8, column + lane / 8 % 2 * 8));
  }
};

}  // namespace arbalest::cuda

#undef ARBALEST_ASM
