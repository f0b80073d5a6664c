// SPDX-License-Identifier: Apache-2.0

// Steps of Muon for matrices whose singular vectors are known: the turns of Newton and Schulz are those of numbers
// then.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <numbers>

#include "graph/optimizer.h"
#include "ops/builtin_ops.h"
#include "ops/check/harness.h"

using namespace arbalest;
using namespace arbalest::test;

namespace muon_test {
namespace {

struct Matrix {
  int64_t rows, columns;
  bool puts_out_columns = false;

  int64_t less() const { return std::min(rows, columns); }
  int64_t blocks() const { return (rows * columns + kParameterAlignment - 1) / kParameterAlignment; }
  double scale() const {
    const double ratio = double(rows) / double(columns);
    return std::sqrt(std::max(1.0, puts_out_columns ? 1 / ratio : ratio));
  }
};

// Element i of the k-th of n orthonormal cosines.
double cosine(int64_t n, int64_t k, int64_t i) {
  return std::sqrt((k == 0 ? 1.0 : 2.0) / double(n)) *
         std::cos(std::numbers::pi * (double(i) + 0.5) * double(k) / double(n));
}

// The matrix with these singular values and cosines for singular vectors.
std::vector<double> composed(const Matrix& of, const std::vector<double>& values) {
  std::vector<double> elements(size_t(of.rows * of.columns), 0), right(size_t(of.columns));
  for (int64_t k = 0; k < of.less(); ++k) {
    for (int64_t c = 0; c < of.columns; ++c) right[size_t(c)] = cosine(of.columns, k, c);
    for (int64_t r = 0; r < of.rows; ++r) {
      const double left = values[size_t(k)] * cosine(of.rows, k, r);
      for (int64_t c = 0; c < of.columns; ++c) elements[size_t(r * of.columns + c)] += left * right[size_t(c)];
    }
  }
  return elements;
}

// Singular values from 1 down to 0.2, and what five turns make of them after the division by their norm.
std::vector<double> given(const Matrix& of) {
  std::vector<double> values;
  for (int64_t k = 0; k < of.less(); ++k) values.push_back(1 - 0.8 * double(k) / double(of.less()));
  return values;
}
std::vector<double> turned(std::vector<double> values) {
  double squares = 0;
  for (const double each : values) squares += each * each;
  for (double& x : values) {
    x /= std::sqrt(squares) + 1e-7;
    for (int turn = 0; turn < 5; ++turn) x = 3.4445 * x - 4.775 * std::pow(x, 3) + 2.0315 * std::pow(x, 5);
  }
  return values;
}

// One update of all matrices at a rate of 1 from weights of 0. Returns the weights, matrix by matrix.
class Update {
 public:
  Update(const std::vector<Matrix>& matrices, DataType type) : matrices_(matrices) {
    std::vector<double> tensors, gradients;
    std::vector<int64_t> extents;
    for (const Matrix& each : matrices) {
      tensors.insert(tensors.end(), {double(int64_t(gradients.size()) / kParameterAlignment), 0.0});
      extents.insert(extents.end(), {each.rows, each.columns, int64_t(each.puts_out_columns)});
      begins_.push_back(gradients.size());
      const std::vector<double> elements = composed(each, given(each));
      gradients.insert(gradients.end(), elements.begin(), elements.end());
      gradients.resize(begins_.back() + size_t(each.blocks() * kParameterAlignment), 0);
    }
    const auto count = int64_t(gradients.size());
    const std::vector<double> zeros(gradients.size(), 0);
    inputs_ = {make_tensor({type, {count}}, gradients), make_tensor({type, {count}}, zeros),
               make_tensor({type, {count}}, zeros),
               make_tensor({DataType::Int32, {int64_t(matrices.size()), 2}}, tensors)};
    attributes_.set("matrices", extents);
  }

  Outcome run(TestDevice& device, double measure = 0) const {
    std::vector<TensorType> types;
    for (const Tensor& input : inputs_) types.push_back(input.type);
    const Case test(builtin_ops().get("arbalest.Muon"), types, 2, attributes_);
    return run_kernel(device, test.get(), test.output_types(), inputs_,
                      {.scalars = {.learning_rate = 1}, .measure = measure});
  }

  void check(TestDevice& device, double tolerance) const {
    const Outcome outcome = run(device);
    REQUIRE(outcome.fault == "");
    const std::vector<double> weights = values_of(outcome.outputs[0]);
    for (size_t m = 0; m < matrices_.size(); ++m) {
      const Matrix& matrix = matrices_[m];
      const std::vector<double> expected = composed(matrix, turned(given(matrix)));
      double errors = 0, squares = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        errors += std::pow(weights[begins_[m] + i] + matrix.scale() * expected[i], 2);
        squares += std::pow(matrix.scale() * expected[i], 2);
      }
      INFO(fmt::format("{} × {}", matrix.rows, matrix.columns));
      CHECK(std::sqrt(errors / squares) < tolerance);
      for (size_t i = begins_[m] + expected.size(); i < begins_[m] + size_t(matrix.blocks() * kParameterAlignment);
           ++i) {
        REQUIRE(weights[i] == 0);
      }
    }
  }

 private:
  std::vector<Matrix> matrices_;
  std::vector<size_t> begins_;
  std::vector<Tensor> inputs_;
  Attributes attributes_;
};

// Wide, tall and square ones, of extents that tiles are no multiple of; from 130 × 140 on too large for a block.
const std::vector<Matrix> kMatrices = {{16, 27},   {64, 288},  {48, 20, true},   {20, 48, true},
                                       {5, 7},     {10, 64},   {33, 33},         {128, 144},
                                       {130, 140}, {140, 130}, {150, 141, true}, {130, 140, true}};

// ResNet-32's 31 for CIFAR-10, and ViT-S/16's 50.
std::vector<Matrix> resnet32() {
  std::vector<Matrix> all = {{16, 27}, {32, 144}, {64, 288}, {10, 64}};
  all.insert(all.end(), 10, {16, 144});
  all.insert(all.end(), 9, {32, 288});
  all.insert(all.end(), 9, {64, 576});
  return all;
}
std::vector<Matrix> vit_s16() {
  std::vector<Matrix> all = {{384, 768}, {1000, 384}};
  for (int block = 0; block < 12; ++block) all.insert(all.end(), {{1152, 384}, {384, 384}, {1536, 384}, {384, 1536}});
  return all;
}

}  // namespace

TEST_CASE("singular values of Muon's steps are near 1, and are what the equations say") {
  for (const Matrix& matrix : kMatrices) {
    for (const double value : turned(given(matrix))) {
      CHECK(value > 0.65);
      CHECK(value < 1.25);
    }
  }
  const auto device = make_cpu_device();
  Update(kMatrices, DataType::Float64).check(*device, 1e-9);
  Update(kMatrices, DataType::Float32).check(*device, 1e-4);
}

TEST_CASE("Muon on a CUDA device makes the steps of the equations, with the same bits each time") {
  std::string why_not;
  const auto device = make_cuda_device(why_not);
  if (!device) {
    MESSAGE("SKIP: " << why_not);
    return;
  }
  const Update all(kMatrices, DataType::Float32);
  all.check(*device, 5e-2);
  CHECK(all.run(*device).outputs[0].bytes == all.run(*device).outputs[0].bytes);
  for (const auto& [name, matrices] : {std::pair("ResNet-32", resnet32()), {"ViT-S/16", vit_s16()}}) {
    const Outcome measured = Update(matrices, DataType::Float32).run(*device, 0.2);
    REQUIRE(measured.fault == "");
    MESSAGE(std::string(name) << ": " << measured.microseconds << " µs");
  }
}

}  // namespace muon_test
