// SPDX-License-Identifier: Apache-2.0

// Every registered operator through its samples.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "executor/devices/device.h"
#include "ops/builtin_ops.h"
#include "ops/check/check_operator.h"
#include "ops/check/harness.h"
#include "ops/fused/decomposed.h"
#include "ops/math/strided.h"
#include "tests/made_cases.h"
#include "tests/part.h"

using namespace arbalest;
using namespace arbalest::test;

namespace samples_test {
namespace {

void check_none(const std::vector<std::string>& faults) {
  for (const std::string& fault : faults) CHECK_MESSAGE(false, fault);
}

}  // namespace

TEST_CASE("the registry is whole: every operator is linked and has samples") {
  const auto& ops = builtin_ops().all();
  std::set<std::string> names;
  for (const Op& op : ops) {
    INFO(op.qualified_name());
    CHECK(names.insert(op.qualified_name()).second);
    CHECK(!op.doc.empty());
    CHECK(bool(op.infer));
    CHECK((!op.expand || op.expands || !op.cpu));
#ifdef ARBALEST_CUDA
    CHECK_MESSAGE((!op.cpu || op.cuda), "there is a kernel for CPUs and none for CUDA");
#endif
    if (op.cpu) {
      REQUIRE(bool(op.samples));
      CHECK(!op.samples().empty());
    }
    for (const AttributeSpec& attribute : op.attributes) CHECK(!attribute.doc.empty());
  }
}

TEST_CASE("operands whose numbers a model's file stores state their parts") {
  constexpr const char* kParts[] = {"Any",      "Weight",    "Scale",        "Bias",       "Mean",
                                    "Variance", "OwnWeight", "InitialState", "ClassWeight"};
  const std::string recurrent = "W OwnWeight, R OwnWeight, B OwnWeight, initial_h InitialState";
  const std::map<std::string, std::string> expected = {
      {"BatchNormalization", "scale Scale, B Bias, input_mean Mean, input_var Variance"},
      {"Conv", "W Weight, B Bias"},
      {"ConvTranspose", "W Weight, B Bias"},
      {"GRU", recurrent},
      {"Gemm", "B Weight, C Bias"},
      {"GroupNormalization", "scale Scale, bias Bias"},
      {"InstanceNormalization", "scale Scale, B Bias"},
      {"LSTM", recurrent + ", initial_c InitialState, P OwnWeight"},
      {"LayerNormalization", "Scale Scale, B Bias"},
      {"MatMul", "A Weight, B Weight"},
      {"NegativeLogLikelihoodLoss", "weight ClassWeight"},
      {"PRelu", "slope Weight"},
      {"RMSNormalization", "scale Scale"},
      {"RNN", recurrent},
      {"SoftmaxCrossEntropyLoss", "weights ClassWeight"}};
  std::map<std::string, std::string> found;
  for (const Op& op : builtin_ops().all()) {
    for (const OperandSpec& spec : op.inputs) {
      if (spec.part == OperandSpec::Any) continue;
      std::string& parts = found[op.qualified_name()];
      parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", spec.name, kParts[spec.part]);
    }
    for (const OperandSpec& spec : op.outputs) CHECK(spec.part == OperandSpec::Any);
  }
  for (const auto& [op, parts] : found) CHECK_MESSAGE(expected.contains(op), op);
  for (const auto& [op, parts] : expected) {
    INFO(op);
    CHECK(found[op] == parts);
  }
}

TEST_CASE("the harness finds faults") {
  const Sample sample{.name = "faults", .inputs = {{{DataType::Float32, {100}}}}, .tolerance = 1e-6};
  const auto device = make_cpu_device();
  // Relu whose float kernel is followed by `fault`; in double it stays right.
  const auto found = [&](void (*fault)(const KernelContext&), const Sample& taken) {
    Op op = builtin_ops().get("Relu");
    op.cpu = [fault](const KernelRequest& request) -> std::unique_ptr<Kernel> {
      auto right = builtin_ops().get("Relu").cpu(request);
      if (request.inputs[0].dtype == DataType::Float64) return right;
      return make_kernel([fault, kernel = std::shared_ptr<Kernel>(std::move(right))](const KernelContext& context) {
        kernel->run(context);
        fault(context);
      });
    };
    return compare_with_oracle(*device, op, taken, DataType::Float32, {}, taken.tolerance);
  };
  CHECK(found([](const KernelContext&) {}, sample) == "");
  CHECK(found([](const KernelContext& c) { static_cast<float*>(c.outputs[0])[100] = 0; }, sample) ==
        "wrote outside output 0; ");
  CHECK(found([](const KernelContext& c) { static_cast<float*>(c.outputs[0])[-1] = 0; }, sample) ==
        "wrote outside output 0; ");
  CHECK(found([](const KernelContext& c) { static_cast<char*>(c.workspace)[0] = 0; }, sample) ==
        "wrote outside the workspace; ");
  CHECK(found([](const KernelContext& c) { *static_cast<float*>(const_cast<void*>(c.inputs[0])) = 7; }, sample) ==
        "changed input 0; ");
  CHECK(found([](const KernelContext& c) { static_cast<float*>(c.outputs[0])[50] = NAN; }, sample)
            .find("relative error") == 10);
  CHECK(found([](const KernelContext& c) { static_cast<float*>(c.outputs[0])[50] += 1e-4f; }, sample)
            .find("relative error") == 10);
  // Too little for the norm of so many elements, and too much for one of them.
  const Sample large{.name = "faults", .inputs = {{{DataType::Float32, {1000, 1000}}}}, .tolerance = 1e-5};
  const auto fault = [](const KernelContext& c) { static_cast<float*>(c.outputs[0])[70'003] += 2e-3f; };
  CHECK(found(fault, large).find("output 0: 1 of 1000000 elements are wrong, the worst at (70, 3): found ") == 0);

  // A fused operator is held against what it says it is made of, not against itself.
  Op fused = builtin_ops().get("Relu");
  fused.decompose = [](ExpandContext& c) { c.replace_output(0, add_one(c, "Relu", {c.input(0)})); };
  CHECK(compare_with_oracle(*device, fused, sample, DataType::Float32, {}, sample.tolerance) == "");
  fused.decompose = [](ExpandContext& c) { c.replace_output(0, add_one(c, "Abs", {c.input(0)})); };
  CHECK(compare_with_oracle(*device, fused, sample, DataType::Float32, {}, sample.tolerance).find("relative error") ==
        10);
  fused.decompose = [](ExpandContext& c) { c.replace_output(0, add_one(c, "ReduceSum", {c.input(0)})); };
  CHECK_THROWS_WITH_AS(compare_with_oracle(*device, fused, sample, DataType::Float32, {}, sample.tolerance),
                       "Relu: its decomposition makes double[1] instead of double[100]", std::logic_error);

  Op wrong_gradient = builtin_ops().get("Relu");
  wrong_gradient.grad = [](GradContext& c) { c.set_input_gradient(0, c.output_gradient(0)); };
  CHECK(check_gradient(wrong_gradient, sample).find("finite differences") != std::string::npos);
  wrong_gradient.grad = [](GradContext&) {};
  CHECK(check_gradient(wrong_gradient, sample) == "no gradient for input 0");

  Op wrong_output = builtin_ops().get("Split");
  const std::vector<Sample> splits = wrong_output.samples();
  const auto parts = std::find_if(splits.begin(), splits.end(), [](const Sample& one) { return one.output_count > 1; });
  REQUIRE(parts != splits.end());
  CHECK(check_gradient(wrong_output, *parts).empty());
  wrong_output.grad = [right = wrong_output.grad](GradContext& c) {
    if (c.output_gradient(0) != kNone) right(c);
  };
  CHECK(check_gradient(wrong_output, *parts) == "of output 1: no gradient for input 0");
}

TEST_CASE("the harness measures a kernel") {
  const Op& op = builtin_ops().get("Relu");
  const Performance measured = measure_sample(*make_cpu_device(), op, op.samples().front(), DataType::Float32, 0.001);
  CHECK(measured.microseconds > 0);
  CHECK(measured.cost.bytes > 0);
}

TEST_CASE("check_operator() says what is wrong with an operator") {
  Op op = builtin_ops().get("Sqrt");
  CHECK(check_operator(op).empty());
  op.grad = [](GradContext& c) { c.set_input_gradient(0, c.output_gradient(0)); };
  const std::vector<std::string> faults = check_operator(op);
  REQUIRE(faults.size() == op.samples().size());
  CHECK(faults[0].find("Sqrt, sample '()', gradient: input 0: the gradient is ") == 0);
  op.samples = nullptr;
  CHECK(check_operator(op) == std::vector<std::string>{"Sqrt: there are no samples"});
  op.infer = nullptr;
  REQUIRE(check_operator(op).size() == 1);
  CHECK(check_operator(op)[0].find("no type inference (Op::infer)") != std::string::npos);
  Op missing = builtin_ops().get("Sqrt");
  missing.infer = [](InferContext& c) { c.fail("nothing fits"); };
  REQUIRE(check_operator(missing).size() >= missing.samples().size());
  CHECK(check_operator(missing)[0].find("nothing fits") != std::string::npos);
}

TEST_CASE("operators are what their records say: other shapes, sums, and single numbers kept") {
  const auto device = make_cpu_device();
  std::set<std::string> reshape, sum, keep;
  for (const Op& op : builtin_ops().all()) {
    for (const Sample& sample : op.cpu&& op.samples ? op.samples() : std::vector<Sample>()) {
      const bool keeps = op.arithmetic == Arithmetic::Keeps && sample.inputs[0].type.elements() == 1;
      if (!(op.reshapes || op.sum || keeps)) continue;
      INFO(op.qualified_name(), ", sample '", sample.name, "'");
      const std::vector<Tensor> inputs = draw_inputs(op, sample, DataType::Float64, 3);
      std::vector<TensorType> types;
      for (const Tensor& input : inputs) types.push_back(input.type);
      const Case one(op, types, sample.output_count, sample.attributes);
      const TensorType x = one.input_types()[0], y = one.output_types()[0];
      if (keeps && (y.elements() != 1 || y.dtype != x.dtype)) continue;
      const std::vector<double> from = values_of(inputs[0]);
      const std::vector<double> made = values_of(run_kernel(*device, one.get(), {y}, inputs, {}).outputs[0]);
      const std::vector<int64_t> steps = memory_strides(x);
      std::vector<double> expected(made.size(), 0.0);
      const AxisSum walk = op.sum ? op.sum(one.get(), x, y) : AxisSum{};
      for (int64_t i = 0; i < x.elements(); ++i) {
        int64_t rest = i, at = 0, to = 0;  // the places of element i of row-major order
        for (size_t axis = x.shape.size(); axis-- > 0; rest /= x.shape[axis]) {
          at += rest % x.shape[axis] * steps[axis];
          if (op.sum) to += rest % x.shape[axis] * walk.strides[axis];
        }
        expected[size_t(op.sum ? to : i)] += from[size_t(at)] * walk.scale;
      }
      for (size_t i = 0; i < made.size(); ++i) {
        REQUIRE(made[i] == doctest::Approx(expected[i]).epsilon(1e-6));
      }
      if (op.reshapes) reshape.insert(op.name);
      if (op.sum) sum.insert(op.name);
      if (keeps) keep.insert(op.name);
    }
  }
  CHECK(reshape == std::set<std::string>{"Flatten", "FlattenInPlace", "Reshape", "Squeeze", "Unsqueeze"});
  CHECK(sum == std::set<std::string>{"GlobalAveragePool", "ReduceMean", "ReduceSum", "SumTo"});
  CHECK(keep.size() > 5);
}

namespace {

// A case for each operator with kernels: all of them in one take minutes, and more under compute-sanitizer.
void make_cases(void (*run)(), const char* name) {
  const std::vector<std::reference_wrapper<const Op>> ops = builtin_ops().all();
  for (size_t i = 0; i < ops.size(); ++i) {
    if (ops[i].get().cpu) make_case(run, name, ops[i].get().qualified_name(), i);
  }
}

const Op& made_for() {
  return builtin_ops().all()[made_case()];
}

void agrees_on_cpu() {
  check_none(faults_on_cpu(made_for()));
  check_none(faults_of_gradient(made_for()));
}
const MadeCases of_cpus([] {
  make_cases(agrees_on_cpu, "CPU kernels agree with double, gradients with finite differences");
});

#ifdef ARBALEST_CUDA
void agrees_on_cuda() {
  std::string why_not;
  const auto device = make_cuda_device(why_not);
  if (!device || made_for().collective) {
    MESSAGE("SKIP: " << (device ? "kernels of operators that span devices need a CollectiveContext" : why_not));
    return;
  }
  REQUIRE_MESSAGE(made_for().cuda, "no kernel for CUDA");
  Part part;
  check_none(faults_on_cuda(*device, made_for(), [&] { return part.has_next(); }));
}
const MadeCases of_cuda([] {
  constexpr const char* kName = "CUDA kernels agree with double on the CPU, also when recorded and replayed";
  if (cuda_device_count() > 0) return make_cases(agrees_on_cuda, kName);
  make_case([] { MESSAGE("SKIP: no CUDA device"); }, kName, "", 0);
});
#endif

}  // namespace

}  // namespace samples_test
