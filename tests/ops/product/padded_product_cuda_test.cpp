// SPDX-License-Identifier: Apache-2.0

// Products in padded memory on CUDA, in each way, and in as many parts as little memory takes. Compiled only with CUDA.

#include "ops/product/padded_product.h"

#include <doctest/doctest.h>

#include <cmath>

#include "graph/graph.h"
#include "tests/ops/lowered_tensor.h"
#include "tests/part.h"

using namespace arbalest;
using namespace arbalest::cuda;

namespace padded_product_cuda_test {
namespace {

Problem problem_of(int64_t m, int64_t n, int64_t k, int variant) {
  return {.m = m,
          .n = n,
          .k = k,
          .trans_a = (variant & 1) != 0,
          .trans_b = (variant & 2) != 0,
          .in = DataType::Bfloat16,
          .out = variant & 4 ? DataType::Float32 : DataType::Bfloat16};
}

bool has_gpu() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) return true;
  MESSAGE("SKIP: no GPU");
  return false;
}

std::vector<float> rounded_noise(int64_t count, uint32_t seed) {
  std::vector<float> values = test::noise_values({count}, seed);
  for (float& value : values) value = float(bfloat16(value));
  return values;
}

// Operands of a product, its result in double precision, and what is added: a row that counts twice, and a summand that
// counts by half.
struct Operands {
  std::vector<float> a, b, row, summand, product, expected;

  explicit Operands(const Problem& p)
      : a(rounded_noise(p.batch * p.m * p.k, 1)),
        b(rounded_noise((p.steps.b == 0 ? 1 : p.batch) * p.n * p.k, 2)),
        row(test::noise_values({p.n}, 3)),
        summand(rounded_noise(p.batch * p.m * p.n, 4)) {
    for (int64_t matrix = 0; matrix < p.batch; ++matrix) {
      const float *of_a = a.data() + matrix * p.steps.a, *of_b = b.data() + matrix * p.steps.b;
      for (int64_t i = 0; i < p.m; ++i) {
        for (int64_t j = 0; j < p.n; ++j) {
          double sum = 0;
          for (int64_t k = 0; k < p.k; ++k) {
            sum += double(of_a[p.trans_a ? k * p.m + i : i * p.k + k]) *
                   double(of_b[p.trans_b ? j * p.k + k : k * p.n + j]);
          }
          product.push_back(float(sum));
          if (p.addend == Addend::Row) sum += 2 * double(row[size_t(j)]);
          if (p.inputs.summand >= 0) sum += 0.5 * double(summand[expected.size()]);
          expected.push_back(float(sum));
        }
      }
    }
  }
};

// The largest difference as a share of what is allowed: a product may be rounded to bfloat16 before something is added,
// so that it is off by its own rounding as well.
double worst_share(const std::vector<float>& found, const Operands& operands, const Problem& p) {
  if (p.out == DataType::Float32) return test::worst_share(found, operands.expected, p.k);
  REQUIRE(found.size() == operands.expected.size());
  double worst = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    const double expected = operands.expected[i], product = operands.product[i];
    const double share = std::abs(found[i] - expected) / ((std::abs(expected) + std::abs(product)) / 256 + 2e-3);
    worst = share <= worst ? worst : share;  // NaN too
  }
  return worst;
}

DeviceBuffer lowered_on_device(const std::vector<float>& values) {
  return uploaded(std::vector<bfloat16>(values.begin(), values.end()));
}

std::vector<float> result_of(CudaContext& context, const Problem& p, const ProductPadding& padding,
                             const Operands& operands) {
  const Node node;
  const Shape shape = {p.products(), p.m, p.n};
  const auto kernel = padded_product({.node = node, .inputs = {}, .outputs = {}, .device = &context}, p, padding);
  REQUIRE(kernel);
  const DeviceBuffer a = lowered_on_device(operands.a), b = lowered_on_device(operands.b),
                     row = test::on_device(operands.row),
                     summand = p.out == DataType::Float32 ? test::on_device(operands.summand)
                                                          : lowered_on_device(operands.summand),
                     y = test::room_for(shape), workspace(kernel->workspace_bytes());
  CUDA_CHECK(cudaMemset(workspace.data(), 0xff, size_t(kernel->workspace_bytes())));  // NaN
  CUDA_CHECK(cudaStreamSynchronize(cudaStreamLegacy));
  const void* const inputs[] = {a.data(), b.data(), row.data(), summand.data()};
  void* const outputs[] = {y.data()};
  kernel->run({.stream = context.stream, .inputs = inputs, .outputs = outputs, .workspace = workspace.data()});
  CUDA_CHECK(cudaStreamSynchronize(context.stream));
  return test::content(y, shape, p.out);
}

// The paddings of a product, in much memory and in little, as if any copy were worth its time.
std::vector<ProductPadding> all_paddings(const CudaContext& context, const Problem& p) {
  DeviceModel slow = context.model;
  slow.bf16_per_second = 1;
  std::vector<ProductPadding> all;
  for (const int64_t memory : {int64_t{32} << 20, int64_t{96} << 10}) {
    for (const ProductPadding& padding : proposed_paddings(slow, p, memory, false)) all.push_back(padding);
  }
  return all;
}

}  // namespace

TEST_CASE("CUDA: products in padded memory agree with sums on the host, in each way, with all that is added") {
  if (!has_gpu()) return;
  CudaContext context(0);
  test::Part part;
  struct Case {
    int64_t batch, m, n, k;
    bool shares_b, in_calls;  // matrices of the batch are calls of their own
  };
  bool parted[4] = {};
  for (const Case& c :
       {Case{1, 40, 37, 24, false, false}, Case{1, 264, 1001, 120, false, false}, Case{1, 200, 264, 1001, false, false},
        Case{1, 333, 130, 77, false, false}, Case{20, 33, 35, 37, false, false}, Case{20, 40, 21, 64, true, false},
        Case{3, 33, 35, 37, false, true}}) {
    for (int variant = 0; variant < 16; ++variant) {
      if (!part.has_next()) continue;
      Problem p = problem_of(c.m, c.n, c.k, variant);
      p.batch = c.batch;
      p.steps = {c.m * c.k, c.shares_b ? 0 : c.n * c.k, c.m * c.n};
      const bool adds = (variant & 8) && !c.in_calls;
      p.summand_factor = 0.5f;
      p.beta = 2;
      p.addend = adds && c.batch == 1 ? Addend::Row : Addend::None;
      p.inputs = {.a = 0, .b = 1, .c = p.addend == Addend::Row ? 2 : -1, .summand = adds ? 3 : -1};
      const Operands operands(p);
      if (c.in_calls) {
        p.calls.clear();
        for (int64_t i = 0; i < c.batch; ++i) p.calls.push_back({i * p.steps.a, i * p.steps.b, i * p.steps.y});
        p.batch = 1;
      }
      for (const ProductPadding& padding : all_paddings(context, p)) {
        CAPTURE(c.m);
        CAPTURE(variant);
        CAPTURE(int(padding.way));
        CAPTURE(int(padding.axis));
        CAPTURE(padding.part);
        const std::vector<float> found = result_of(context, p, padding, operands);
        CHECK(worst_share(found, operands, p) < 1);
        CHECK(found == result_of(context, p, padding, operands));
        if (parts_of(p, padding) > 1) parted[size_t(padding.axis)] = true;
      }
    }
  }
  if (part.is_whole()) {
    for (const bool axis : parted) CHECK(axis);
  }
}

}  // namespace padded_product_cuda_test
