// SPDX-License-Identifier: Apache-2.0
#include "ops/check/check_operator.h"

#include <fmt/format.h>

#include <algorithm>

#include "ops/check/harness.h"

namespace arbalest {
namespace test {
namespace {

bool has_lowered_operand(const Op& op) {
  const auto lowered = [](const OperandSpec& spec) { return spec.lowered; };
  return std::any_of(op.inputs.begin(), op.inputs.end(), lowered) ||
         std::any_of(op.outputs.begin(), op.outputs.end(), lowered);
}

// Half an ulp of bfloat16 is 2⁻⁹; TF32 rounds operands to 2⁻¹¹.
constexpr double kBfloat16Tolerance = 4e-3, kTf32Tolerance = 2e-3;
constexpr double kCudaTolerance = 1e-6;  // at least: sums are in another order than on the CPU

// check(sample, add): add(what, fault) reports a fault that is not "".
template <typename Check>
std::vector<std::string> for_each_sample(const Op& op, const Check& check) {
  std::vector<std::string> faults;
  for (const Sample& sample : op.samples ? op.samples() : std::vector<Sample>()) {
    const auto add = [&](std::string_view what, const std::string& fault) {
      if (fault.empty()) return;
      faults.push_back(fmt::format("{}, sample '{}', {}: {}", op.qualified_name(), sample.name, what, fault));
    };
    try {
      check(sample, add);
    } catch (const std::exception& error) {
      add("not run", error.what());
    }
  }
  return faults;
}

}  // namespace

std::vector<std::string> faults_on_cpu(const Op& op) {
  const auto device = make_cpu_device();
  return for_each_sample(op, [&](const Sample& sample, const auto& add) {
    add("CPU, float", compare_with_oracle(*device, op, sample, DataType::Float32, {}, sample.tolerance));
    if (!(op.aliases.empty() && op.overwrites.empty()) && !sample.in_place) {
      add("CPU, float, no shared memory",
          compare_with_oracle(*device, op, sample, DataType::Float32, {.share_aliases = false}, sample.tolerance));
    }
    if (!has_lowered_operand(op)) return;
    add("CPU, bfloat16", compare_with_oracle(*device, op, sample, DataType::Bfloat16, {},
                                             std::max(sample.tolerance, kBfloat16Tolerance)));
  });
}

std::vector<std::string> faults_of_gradient(const Op& op) {
  if (!op.grad) return {};
  return for_each_sample(op,
                         [&](const Sample& sample, const auto& add) { add("gradient", check_gradient(op, sample)); });
}

std::vector<std::string> faults_on_cuda(TestDevice& device, const Op& op, const std::function<bool()>& takes) {
  return for_each_sample(op, [&](const Sample& sample, const auto& add) {
    if (takes && !takes()) return;
    const double least = std::max(sample.tolerance, kCudaTolerance);
    add("CUDA, fp32", compare_with_oracle(device, op, sample, DataType::Float32, {}, least));
    add("CUDA, tf32", compare_with_oracle(device, op, sample, DataType::Float32, {.math = MathMode::Tf32},
                                          std::max(sample.tolerance, kTf32Tolerance)));
    if (has_lowered_operand(op)) {
      add("CUDA, bfloat16", compare_with_oracle(device, op, sample, DataType::Bfloat16, {},
                                                std::max(sample.tolerance, kBfloat16Tolerance)));
      // Kernels that are chosen by a rule rather than by time.
      add("CUDA, bfloat16, deterministic",
          compare_with_oracle(device, op, sample, DataType::Bfloat16, {.deterministic = true},
                              std::max(sample.tolerance, kBfloat16Tolerance)));
    }
    if (!op.overwrites.empty()) {
      add("CUDA, fp32, no shared memory",
          compare_with_oracle(device, op, sample, DataType::Float32, {.share_aliases = false}, least));
    }
    if (!device.can_record()) return;
    // Kernels are laid out for their share of the device then.
    add("CUDA, replayed, one of 16 learners",
        compare_with_oracle(device, op, sample, DataType::Float32, {.concurrent = 16, .replays = 2}, least));
  });
}

}  // namespace test

std::vector<std::string> check_operator(const Op& op) {
  try {
    check_record(op);
  } catch (const GraphError& error) {
    return {error.what()};
  }
  if (op.is_layer()) return {};                      // what it expands into is checked by itself
  if (op.content && !op.cpu && !op.cuda) return {};  // nothing runs
  std::vector<std::string> faults;
  const auto append = [&](std::vector<std::string> more) { faults.insert(faults.end(), more.begin(), more.end()); };
  if (!op.samples || op.samples().empty()) faults.push_back(op.qualified_name() + ": there are no samples");
  if (!op.cpu) return faults;  // nothing to compare with
  append(test::faults_on_cpu(op));
  append(test::faults_of_gradient(op));
  std::string why_not;
  if (const auto device = test::make_cuda_device(why_not); device && !op.collective) {
    if (!op.cuda) {
      faults.push_back(op.qualified_name() + ": there is a kernel for CPUs and none for CUDA");
    } else {
      append(test::faults_on_cuda(*device, op));
    }
  }
  return faults;
}

}  // namespace arbalest
