// SPDX-License-Identifier: Apache-2.0

// Products of small matrices by the kernel of ours. Compiled only with CUDA.

#include "ops/product/small_product.h"

#include <doctest/doctest.h>

#include "graph/graph.h"
#include "ops/cuda/recorded_graph.h"
#include "tests/ops/lowered_tensor.h"
#include "tests/part.h"

using namespace arbalest;
using arbalest::cuda::is_small_product;
using arbalest::cuda::Problem;
using arbalest::cuda::small_product;
using test::LoweredTensor;

namespace small_product_cuda_test {
namespace {

Problem problem_of(int64_t m, int64_t n, int64_t k) {
  return {
      .m = m, .n = n, .k = k, .trans_a = false, .trans_b = false, .in = DataType::Bfloat16, .out = DataType::Bfloat16};
}

bool has_gpu() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) return true;
  MESSAGE("SKIP: no GPU");
  return false;
}

// (rows, columns), turned or as they are.
std::vector<float> turned(const std::vector<float>& matrix, int64_t rows, int64_t columns, bool turn) {
  if (!turn) return matrix;
  std::vector<float> result(matrix.size());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) result[size_t(j * rows + i)] = matrix[size_t(i * columns + j)];
  }
  return result;
}

DeviceBuffer lowered_on_device(const std::vector<float>& values) {
  return uploaded(std::vector<bfloat16>(values.begin(), values.end()));
}

std::vector<float> rounded_noise(const Shape& shape, uint32_t seed) {
  std::vector<float> values = test::noise_values(shape, seed);
  for (float& value : values) value = float(bfloat16(value));
  return values;
}

std::vector<float> product_of(const std::vector<float>& a, const std::vector<float>& b, const Problem& p) {
  std::vector<float> result;
  for (int64_t i = 0; i < p.m; ++i) {
    std::vector<double> sums(size_t(p.n), 0.0);
    for (int64_t k = 0; k < p.k; ++k) {
      const double factor = a[size_t(i * p.k + k)];
      for (int64_t j = 0; j < p.n; ++j) sums[size_t(j)] += factor * b[size_t(k * p.n + j)];
    }
    result.insert(result.end(), sums.begin(), sums.end());
  }
  return result;
}

// The problem's result by the kernel, of op(A), op(B), a row that is added twice, and a summand that counts by half.
std::vector<float> result_of(CudaContext& context, const Problem& p, const std::vector<float>& a,
                             const std::vector<float>& b, const std::vector<float>& row,
                             const std::vector<float>& summand) {
  const Node node;
  const auto kernel = small_product({.node = node, .inputs = {}, .outputs = {}, .device = &context}, p);
  REQUIRE(kernel);
  const DeviceBuffer of_a = lowered_on_device(turned(a, p.m, p.k, p.trans_a)),
                     of_b = lowered_on_device(turned(b, p.k, p.n, p.trans_b)), of_row = test::on_device(row),
                     of_summand = p.out == DataType::Float32 ? test::on_device(summand) : lowered_on_device(summand);
  const DeviceBuffer y = test::room_for({p.m, p.n});
  const void* const inputs[] = {of_a.data(), of_b.data(), of_row.data(), of_summand.data()};
  void* const outputs[] = {y.data()};
  kernel->run({.stream = context.stream, .inputs = inputs, .outputs = outputs});
  CUDA_CHECK(cudaStreamSynchronize(context.stream));
  return test::content(y, {p.m, p.n}, p.out);
}

}  // namespace

TEST_CASE("CUDA: small products agree with sums on the host, whatever is transposed or added") {
  if (!has_gpu()) return;
  CudaContext context(0);
  test::Part part;
  for (const int64_t m : {1, 3, 64, 100, 250}) {
    for (const int64_t n : {8, 24, 384, 1000}) {
      for (const int64_t k : {8, 64, 120, 384, 512, 1000}) {
        if (!part.has_next()) continue;
        Problem p = problem_of(m, n, k);
        const std::vector<float> a = rounded_noise({m, k}, 1), b = rounded_noise({k, n}, 2),
                                 row = test::noise_values({n}, 3), summand = rounded_noise({m, n}, 4);
        const std::vector<float> exact = product_of(a, b, p);
        for (int variant = 0; variant < 16; ++variant) {
          p.trans_a = variant & 1;
          p.trans_b = variant & 2;
          p.out = variant & 4 ? DataType::Float32 : DataType::Bfloat16;
          const bool adds = variant & 8;
          p.alpha = adds ? 0.5f : 1;
          p.beta = 2;
          p.summand_factor = 0.5f;
          p.addend = adds ? Addend::Row : Addend::None;
          p.inputs = {.a = 0, .b = 1, .c = adds ? 2 : -1, .summand = adds ? 3 : -1};
          CAPTURE(m);
          CAPTURE(n);
          CAPTURE(k);
          CAPTURE(variant);
          const bool taken = is_small_product(context.model, p);
          CHECK(taken == ((!p.trans_a || m % 8 == 0) && (m + 15) / 16 * ((n + 15) / 16) <= 512));
          if (!taken) continue;
          const std::vector<float> found = result_of(context, p, a, b, row, summand);
          std::vector<float> expected = exact;
          for (size_t i = 0; adds && i < expected.size(); ++i) {
            expected[i] = 0.5f * exact[i] + 2 * row[i % size_t(n)] + 0.5f * summand[i];
          }
          CHECK(test::worst_share(found, expected, p.out == DataType::Float32 ? k : 1) < 1);
          CHECK(found == result_of(context, p, a, b, row, summand));
        }
      }
    }
  }
}

// Each launch starts while the one before it runs, and three buffers are written again and again.
TEST_CASE("CUDA: a chain of small products that start early has the bits of one that waits") {
  if (!has_gpu()) return;
  CudaContext context(0);
  constexpr int kSteps = 300, kRuns = 20;
  Problem p = problem_of(64, 128, 128);
  p.alpha = 0.06f;  // with which numbers fade slowly
  p.summand_factor = 0.5f;
  p.inputs.summand = 2;
  const Node node;
  const auto kernel = small_product({.node = node, .inputs = {}, .outputs = {}, .device = &context}, p);
  REQUIRE(kernel);
  const LoweredTensor b = test::lowered_noise({128, 128}, 1), start = test::lowered_noise({64, 128}, 2);
  const DeviceBuffer states[3] = {DeviceBuffer(64 * 128 * 2), DeviceBuffer(64 * 128 * 2), DeviceBuffer(64 * 128 * 2)};
  const auto copy_start = [&] {
    for (const DeviceBuffer& state : states) {
      CUDA_CHECK(
          cudaMemcpyAsync(state.data(), start.lowered.data(), 64 * 128 * 2, cudaMemcpyDeviceToDevice, context.stream));
    }
  };
  const auto step = [&](int i) {
    const void* const inputs[] = {states[i % 3].data(), b.lowered.data(), states[(i + 1) % 3].data()};
    void* const outputs[] = {states[(i + 2) % 3].data()};
    kernel->run({.stream = context.stream, .inputs = inputs, .outputs = outputs});
  };
  const auto result = [&] { return test::content(states[(kSteps + 1) % 3], {64, 128}, DataType::Bfloat16); };
  copy_start();
  for (int i = 0; i < kSteps; ++i) {
    step(i);
    CUDA_CHECK(cudaStreamSynchronize(context.stream));
  }
  const std::vector<float> expected = result();
  RecordedGraph recorded;
  recorded.record(context.stream, [&] {
    copy_start();
    for (int i = 0; i < kSteps; ++i) step(i);
  });
  for (int run = 0; run < kRuns; ++run) {
    CUDA_CHECK(cudaGraphLaunch(recorded.graph(), context.stream));
    CUDA_CHECK(cudaStreamSynchronize(context.stream));
    CHECK(result() == expected);
  }
}

TEST_CASE("which products are small") {
  const DeviceModel device = device_model("H200");
  const Problem good = problem_of(64, 384, 128);
  CHECK(is_small_product(device, good));
  for (const char* other : {"A100", "L4", "RTX 5090"}) CHECK(is_small_product(device_model(other), good));
  DeviceModel old = device;
  old.architecture = 75;
  CHECK_FALSE(is_small_product(old, good));
  const auto takes = [&](auto change) {
    Problem problem = good;
    change(problem);
    return is_small_product(device, problem);
  };
  CHECK(takes([](Problem& p) { p.m = 63; }));
  CHECK(takes([](Problem& p) { p.n = 383, p.trans_b = true; }));
  CHECK(takes([](Problem& p) { p.k = 127, p.trans_a = true; }));
  CHECK(takes([](Problem& p) { p.out = DataType::Float32; }));
  CHECK(takes([](Problem& p) { p.batch = 4, p.m = p.n = 64, p.steps = {8192, 0, 4096}; }));
  CHECK_FALSE(takes([](Problem& p) { p.in = DataType::Float32; }));
  CHECK_FALSE(takes([](Problem& p) { p.k = 127; }));
  CHECK_FALSE(takes([](Problem& p) { p.n = 383; }));
  CHECK_FALSE(takes([](Problem& p) { p.m = 63, p.trans_a = true; }));
  CHECK_FALSE(takes([](Problem& p) { p.k = 1032; }));
  CHECK_FALSE(takes([](Problem& p) { p.m = 512; }));                             // 768 tiles
  CHECK_FALSE(takes([](Problem& p) { p.batch = 2, p.steps = {4, 0, 24576}; }));  // not aligned
  CHECK_FALSE(takes([](Problem& p) { p.batch = 2, p.addend = Addend::Row; }));
  CHECK_FALSE(takes([](Problem& p) { p.calls = {{}, {8192, 0, 24576}}; }));
  CHECK_FALSE(takes([](Problem& p) { p.calls = {{8, 0, 0}}; }));
}

}  // namespace small_product_cuda_test
