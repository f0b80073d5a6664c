// Every registered operator through its samples.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "ops/builtin_ops.h"
#include "ops/check/check_operator.h"
#include "ops/check/harness.h"
#include "ops/fused/decomposed.h"
#include "tests/ops/part.h"

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

TEST_CASE("CPU kernels agree with themselves in double, in float and bfloat16") {
  for (const Op& op : builtin_ops().all()) {
    if (op.cpu) check_none(faults_on_cpu(op));
  }
}

TEST_CASE("gradients agree with finite differences") {
  for (const Op& op : builtin_ops().all()) {
    if (op.cpu) check_none(faults_of_gradient(op));
  }
}

TEST_CASE("CUDA kernels agree with double on the CPU, also when recorded and replayed") {
  std::string why_not;
  const auto device = make_cuda_device(why_not);
  if (!device) {
    MESSAGE("SKIP: " << why_not);
    return;
  }
  test::Part part;  // of the samples
  // Checks of one operator alone, for compute-sanitizer too.
  const char* only = std::getenv("ARBALEST_OPERATOR");
  if (only != nullptr) REQUIRE(builtin_ops().find(only) != nullptr);
  int collective = 0;
  for (const Op& op : builtin_ops().all()) {
    if (!op.cpu || (only != nullptr && op.qualified_name() != only)) continue;
    if (op.collective) {
      ++collective;
      continue;
    }
    REQUIRE_MESSAGE(op.cuda, op.qualified_name(), ": no kernel for CUDA");
    std::vector<Sample> chosen;
    for (Sample& sample : op.samples()) {
      if (part.has_next()) chosen.push_back(std::move(sample));
    }
    if (chosen.empty()) continue;
    Op with_chosen = op;
    with_chosen.samples = [&] { return chosen; };
    check_none(faults_on_cuda(*device, with_chosen));
  }
  if (collective > 0) MESSAGE(collective << " operators span devices: their CUDA kernels need a CollectiveContext");
}

}  // namespace samples_test
