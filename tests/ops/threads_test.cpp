// SPDX-License-Identifier: Apache-2.0

// The promise of --deterministic for kernels on the CPU: the same bits with any number of threads.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "ops/builtin_ops.h"
#include "ops/check/harness.h"

#ifdef _OPENMP
#include <omp.h>
#endif

using namespace arbalest;
using namespace arbalest::test;

#ifdef _OPENMP
namespace threads_test {
namespace {

// The number of threads that kernels are made for and run with, as long as it lives.
class Threads {
 public:
  explicit Threads(int count) : before_(omp_get_max_threads()) { omp_set_num_threads(count); }
  ~Threads() { omp_set_num_threads(before_); }

 private:
  int before_;
};

// The outputs of a sample with each number of threads.
std::vector<std::vector<Tensor>> run_sample(const Op& op, const Sample& sample, DataType type,
                                            const std::vector<int>& threads) {
  const auto device = make_cpu_device();
  const std::vector<Tensor> inputs = draw_inputs(op, sample, type, 1);
  std::vector<TensorType> types;
  for (const Tensor& input : inputs) types.push_back(input.type);
  const Case test(op, types, sample.output_count, sample.attributes);
  std::vector<std::vector<Tensor>> outputs;
  for (const int count : threads) {
    const Threads scope(count);
    outputs.push_back(run_kernel(*device, test.get(), test.output_types(), inputs,
                                 {.scalars = sample.scalars, .deterministic = true, .share_aliases = sample.in_place})
                          .outputs);
  }
  return outputs;
}

Sample::Input drawn(const Shape& shape) {
  return {{DataType::Float32, shape}};
}

// Adds convolutions to the operators' own samples: large enough for oneDNN to divide sums among threads, in one way or
// another.
void add_convolutions(std::vector<std::pair<std::string, Sample>>& samples) {
  struct Case {
    int64_t batch, channels, side, filters, kernel, stride, pad, group;
    size_t axes = 2;
  };
  for (const Case& c :
       {Case{8, 3, 64, 64, 7, 2, 3, 1}, Case{3, 256, 14, 64, 1, 1, 0, 1}, Case{17, 16, 16, 32, 3, 2, 1, 1},
        Case{20, 20, 12, 50, 5, 1, 0, 1}, Case{2, 96, 14, 96, 3, 1, 1, 96}, Case{1, 128, 7, 256, 3, 1, 1, 1},
        Case{6, 16, 8, 32, 3, 1, 1, 2, 3}}) {
    const int64_t out = (c.side + 2 * c.pad - c.kernel) / c.stride + 1;
    const auto drawn_along = [&](Shape shape, int64_t extent) {
      shape.resize(2 + c.axes, extent);
      return drawn(shape);
    };
    const Sample::Input x = drawn_along({c.batch, c.channels}, c.side),
                        w = drawn_along({c.filters, c.channels / c.group}, c.kernel),
                        y = drawn_along({c.batch, c.filters}, out);
    const Attributes attributes = {{"strides", std::vector<int64_t>(c.axes, c.stride)},
                                   {"pads", std::vector<int64_t>(2 * c.axes, c.pad)},
                                   {"group", c.group}};
    const std::string name = fmt::format("{} of {} to {}, {}x{}", c.batch, c.channels, c.filters, c.kernel, c.kernel);
    samples.push_back({"Conv", {.name = name, .inputs = {x, w, drawn({c.filters})}, .attributes = attributes}});
    samples.push_back({"arbalest.ConvGradInput", {.name = name, .inputs = {y, w, x}, .attributes = attributes}});
    samples.push_back({"arbalest.ConvGradWeight", {.name = name, .inputs = {x, y, w}, .attributes = attributes}});
  }
}

void add_products(std::vector<std::pair<std::string, Sample>>& samples) {
  struct Case {
    int64_t batch, rows, depth, columns;
  };
  for (const Case& c : {Case{1, 64, 784, 500}, Case{1, 64, 512, 10}, Case{1, 300, 64, 512}, Case{1, 1, 2048, 1000},
                        Case{1, 8, 6000, 64}, Case{1, 3, 20'000, 5}, Case{12, 50, 64, 150}}) {
    for (const int64_t trans : {0, 1, 2, 3}) {
      const int64_t trans_a = trans & 1, trans_b = trans >> 1;
      const auto matrices = [&](int64_t rows, int64_t columns, bool transposed, bool batched) {
        if (transposed) std::swap(rows, columns);
        return batched ? drawn({c.batch, rows, columns}) : drawn({rows, columns});
      };
      const Attributes attributes = {{"transA", trans_a}, {"transB", trans_b}};
      const std::string name = fmt::format("{} x {} x {}, {}", c.rows, c.depth, c.columns, trans);
      samples.push_back(
          {"arbalest.BatchMatMul",
           {.name = name,
            .inputs = {matrices(c.rows, c.depth, trans_a, true), matrices(c.depth, c.columns, trans_b, true)},
            .attributes = attributes}});
      if (c.batch > 1) continue;
      const Sample::Input a = matrices(c.rows, c.depth, trans_a, false),
                          b = matrices(c.depth, c.columns, trans_b, false),
                          y = matrices(c.rows, c.columns, false, false);
      samples.push_back({"Gemm", {.name = name, .inputs = {a, b, drawn({c.columns})}, .attributes = attributes}});
      samples.push_back({"arbalest.GemmGradB", {.name = name, .inputs = {a, y}, .attributes = attributes}});
    }
  }
}

std::vector<std::pair<std::string, Sample>> all_samples() {
  std::vector<std::pair<std::string, Sample>> samples;
  for (const Op& op : builtin_ops().all()) {
    if (!op.cpu || op.collective) continue;
    for (const Sample& sample : op.samples()) samples.emplace_back(op.qualified_name(), sample);
  }
  add_convolutions(samples);
  add_products(samples);
  return samples;
}

}  // namespace

TEST_CASE("deterministic kernels on the CPU give the same bits with any number of threads") {
  // OpenMP ends and starts threads where their number changes by much.
  const std::vector<int> more = {1, 2, 3, 8}, fewer = {8, 3, 2, 1};
  for (const auto& [name, sample] : all_samples()) {
    const Op& op = builtin_ops().get(name);
    for (const DataType type : {DataType::Float32, DataType::Bfloat16}) {
      const std::vector<int>& threads = type == DataType::Float32 ? more : fewer;
      const std::vector<std::vector<Tensor>> outputs = run_sample(op, sample, type, threads);
      for (size_t run = 1; run < threads.size(); ++run) {
        for (size_t i = 0; i < outputs[0].size(); ++i) {
          CHECK_MESSAGE(outputs[run][i].bytes == outputs[0][i].bytes,
                        fmt::format("{}, sample '{}', {}, output {}: {} threads give other bits than {}", name,
                                    sample.name, name_of(type), i, threads[run], threads[0]));
        }
      }
    }
  }
}

TEST_CASE("deterministic kernels on the CPU agree with double") {
  const auto device = make_cpu_device();
  for (const auto& [name, sample] : all_samples()) {
    const std::string fault =
        compare_with_oracle(*device, builtin_ops().get(name), sample, DataType::Float32,
                            {.deterministic = true, .share_aliases = sample.in_place}, sample.tolerance);
    CHECK_MESSAGE(fault == "", fmt::format("{}, sample '{}': {}", name, sample.name, fault));
  }
}
#endif

}  // namespace threads_test
