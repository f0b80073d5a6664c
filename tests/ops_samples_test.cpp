// Every registered operator through its samples.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "tests/ops_harness.h"

using namespace arbalest;
using namespace arbalest::test;

namespace {

bool has_lowered_operand(const Op& op) {
  const auto lowered = [](const OperandSpec& spec) { return spec.lowered; };
  return std::any_of(op.inputs.begin(), op.inputs.end(), lowered) ||
         std::any_of(op.outputs.begin(), op.outputs.end(), lowered);
}

// Half an ulp of bfloat16 is 2⁻⁹; TF32 rounds operands to 2⁻¹¹.
constexpr double kBfloat16Tolerance = 4e-3, kTf32Tolerance = 2e-3;

template <typename F>
void for_each_sample(bool (*wanted)(const Op&), const F& f) {
  for (const Op& op : builtin_ops().all()) {
    if (!wanted(op) || !op.samples) continue;
    for (const Sample& sample : op.samples()) {
      INFO(op.qualified_name(), ", sample '", sample.name, "'");
      f(op, sample);
    }
  }
}

bool has_cpu_kernel(const Op& op) {
  return bool(op.cpu);
}

}  // namespace

TEST_CASE("the registry is whole: every operator is linked and has samples") {
  const auto& ops = builtin_ops().all();
  CHECK(ops.size() == 40);
  std::set<std::string> names;
  for (const Op& op : ops) {
    INFO(op.qualified_name());
    CHECK(names.insert(op.qualified_name()).second);
    CHECK(!op.doc.empty());
    CHECK(bool(op.infer));
    CHECK((!op.expand || !op.cpu));
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
  const auto found = [&](void (*fault)(const KernelContext&)) {
    Op op = builtin_ops().get("Relu");
    op.cpu = [fault](const KernelRequest& request) -> std::unique_ptr<Kernel> {
      auto right = builtin_ops().get("Relu").cpu(request);
      if (request.inputs[0].dtype == DataType::Float64) return right;
      return make_kernel([fault, kernel = std::shared_ptr<Kernel>(std::move(right))](const KernelContext& context) {
        kernel->run(context);
        fault(context);
      });
    };
    return compare_with_oracle(*device, op, sample, DataType::Float32, {}, sample.tolerance);
  };
  CHECK(found([](const KernelContext&) {}) == "");
  CHECK(found([](const KernelContext& c) { static_cast<float*>(c.outputs[0])[100] = 0; }) ==
        "wrote outside output 0; ");
  CHECK(found([](const KernelContext& c) { static_cast<float*>(c.outputs[0])[-1] = 0; }) == "wrote outside output 0; ");
  CHECK(found([](const KernelContext& c) { static_cast<char*>(c.workspace)[0] = 0; }) ==
        "wrote outside the workspace; ");
  CHECK(found([](const KernelContext& c) { *static_cast<float*>(const_cast<void*>(c.inputs[0])) = 7; }) ==
        "changed input 0; ");
  CHECK(found([](const KernelContext& c) { static_cast<float*>(c.outputs[0])[50] = NAN; }).find("relative error") ==
        10);
  CHECK(found([](const KernelContext& c) { static_cast<float*>(c.outputs[0])[50] += 1e-4f; }).find("relative error") ==
        10);

  Op wrong_gradient = builtin_ops().get("Relu");
  wrong_gradient.grad = [](GradContext& c) { c.set_input_gradient(0, c.output_gradient(0)); };
  CHECK(check_gradient(wrong_gradient, sample).find("finite differences") != std::string::npos);
  wrong_gradient.grad = [](GradContext&) {};
  CHECK(check_gradient(wrong_gradient, sample) == "no gradient for input 0");
}

TEST_CASE("CPU kernels in float agree with double") {
  const auto device = make_cpu_device();
  for_each_sample(has_cpu_kernel, [&](const Op& op, const Sample& sample) {
    CHECK(compare_with_oracle(*device, op, sample, DataType::Float32, {}, sample.tolerance) == "");
    if (!op.aliases.empty() && !sample.in_place) {
      CHECK(compare_with_oracle(*device, op, sample, DataType::Float32, {.share_aliases = false}, sample.tolerance) ==
            "");
    }
  });
}

TEST_CASE("CPU kernels in bfloat16 agree with double") {
  const auto device = make_cpu_device();
  for_each_sample(has_cpu_kernel, [&](const Op& op, const Sample& sample) {
    if (!has_lowered_operand(op)) return;
    const double tolerance = std::max(sample.tolerance, kBfloat16Tolerance);
    CHECK(compare_with_oracle(*device, op, sample, DataType::Bfloat16, {}, tolerance) == "");
  });
}

TEST_CASE("gradients agree with finite differences") {
  for_each_sample([](const Op& op) { return op.cpu && op.grad; },
                  [&](const Op& op, const Sample& sample) { CHECK(check_gradient(op, sample) == ""); });
}

TEST_CASE("CUDA kernels agree with double on the CPU, also when recorded and replayed") {
  std::string why_not;
  const auto device = make_cuda_device(why_not);
  if (!device) {
    MESSAGE("SKIP: " << why_not);
    return;
  }
  int without_kernel = 0, collective = 0;
  for_each_sample(has_cpu_kernel, [&](const Op& op, const Sample& sample) {
    if (!op.cuda || op.collective) {
      ++(op.collective ? collective : without_kernel);
      return;
    }
    CHECK(compare_with_oracle(*device, op, sample, DataType::Float32, {}, std::max(sample.tolerance, 1e-6)) == "");
    const double tf32 = std::max(sample.tolerance, kTf32Tolerance);
    CHECK(compare_with_oracle(*device, op, sample, DataType::Float32, {.math = MathMode::Tf32}, tf32) == "");
    if (has_lowered_operand(op)) {
      const double bf16 = std::max(sample.tolerance, kBfloat16Tolerance);
      CHECK(compare_with_oracle(*device, op, sample, DataType::Bfloat16, {}, bf16) == "");
    }
    if (device->can_record()) {
      CHECK(compare_with_oracle(*device, op, sample, DataType::Float32, {.replays = 2},
                                std::max(sample.tolerance, 1e-6)) == "");
    }
  });
  if (without_kernel > 0) MESSAGE(without_kernel << " samples have operators without a CUDA kernel");
  if (collective > 0) MESSAGE(collective << " samples span devices: their CUDA kernels need a CollectiveContext");
}
