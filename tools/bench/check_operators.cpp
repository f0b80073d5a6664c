// SPDX-License-Identifier: Apache-2.0

// The harness of operators from the command line: takes registered operators through their samples, as the tests do, or
// measures their kernels.
//
//     build/tools/check_operators [OPERATOR...] [--device cpu|cuda] [--perf] [--type fp32|bf16] [--seconds 0.1]
//
// Without names all operators that have kernels are taken, without --device the CPU and, if there is one, a GPU. With
// --perf each sample is a line: the median time of a run, and the bytes and operations per second of its least work. On
// a GPU the time is that of a recording, from its launch until the host has seen its end. The exit status is 1 if an
// operator has a fault.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "ops/builtin_ops.h"
#include "ops/check/harness.h"

namespace arbalest::test {
namespace {

struct Asked {
  std::vector<std::string> operators;  // empty: all
  std::string device, type = "fp32";   // device: "cpu", "cuda"; "": both
  bool perf = false;
  double seconds = 0.1;  // for each sample
};

std::vector<const Op*> chosen_operators(const std::vector<std::string>& names) {
  std::vector<const Op*> chosen;
  for (const std::string& name : names) {
    const Op* op = builtin_ops().find(name);
    if (op == nullptr) op = builtin_ops().find("arbalest." + name);
    if (op == nullptr || !op->cpu || !op->samples)
      throw GraphError(fmt::format("'{}' is no operator with kernels", name));
    chosen.push_back(op);
  }
  if (!names.empty()) return chosen;
  for (const Op& op : builtin_ops().all()) {
    if (op.cpu && op.samples) chosen.push_back(&op);
  }
  return chosen;
}

void print_performance(TestDevice& device, const char* name, const Op& op, const Asked& asked) {
  for (const Sample& sample : op.samples()) {
    const DataType type = asked.type == "bf16" ? DataType::Bfloat16 : DataType::Float32;
    const Performance measured = measure_sample(device, op, sample, type, asked.seconds);
    const double per_second = 1e-3 / measured.microseconds;  // 10⁹ a second for each of what a run does
    fmt::print("{:<4} {:<34} {:<40} {:>12.1f} µs {:>9.2f} GB/s {:>10.2f} GFLOP/s\n", name, op.qualified_name(),
               sample.name, measured.microseconds, measured.cost.bytes * per_second, measured.cost.flops * per_second);
  }
}

// The number of operators with faults, each of which is printed.
int check(TestDevice& device, bool cuda, const std::vector<const Op*>& operators) {
  int wrong = 0;
  for (const Op* op : operators) {
    std::vector<std::string> faults = cuda ? faults_on_cuda(device, *op) : faults_on_cpu(*op);
    if (!cuda) {
      for (std::string& fault : faults_of_gradient(*op)) faults.push_back(std::move(fault));
    }
    for (const std::string& fault : faults) fmt::print("{}\n", fault);
    wrong += !faults.empty();
  }
  return wrong;
}

int run(const Asked& asked) {
  const std::vector<const Op*> operators = chosen_operators(asked.operators);
  int wrong = 0;
  for (const bool cuda : {false, true}) {
    const char* const name = cuda ? "cuda" : "cpu";
    if (!asked.device.empty() && asked.device != name) continue;
    std::string why_not;
    const std::unique_ptr<TestDevice> device = cuda ? make_cuda_device(why_not) : make_cpu_device();
    if (!device) {
      if (asked.device == name) throw RunError(fmt::format("{}: {}", name, why_not));
      continue;
    }
    std::vector<const Op*> runnable;
    for (const Op* op : operators) {
      if (!cuda || (op->cuda && !op->collective)) runnable.push_back(op);
    }
    if (asked.perf) {
      for (const Op* op : runnable) print_performance(*device, name, *op, asked);
    } else {
      const int here = check(*device, cuda, runnable);
      fmt::print("{}: {} operators, {} with faults\n", name, runnable.size(), here);
      wrong += here;
    }
  }
  return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace arbalest::test

int main(int argc, char** argv) {
  arbalest::test::Asked asked;
  CLI::App app("Takes operators through their samples, or measures their kernels");
  app.add_option("operators", asked.operators, "names, as Relu or arbalest.Linear; none: all");
  app.add_option("--device", asked.device)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--type", asked.type, "with --perf, of operands that follow the precision")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  app.add_flag("--perf", asked.perf, "measure instead of checking");
  app.add_option("--seconds", asked.seconds, "with --perf, for each sample")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    return arbalest::test::run(asked);
  } catch (const std::exception& error) {
    fmt::print(stderr, "check_operators: {}\n", error.what());
    return 1;
  }
}
