// SPDX-License-Identifier: Apache-2.0
#pragma once
// Takes operators through their samples: draws inputs, runs kernels between guard bytes, compares with the same
// operator in double on the CPU, and gradients with finite differences. A fused operator is compared with the operators
// that it stands for (Op::decompose).

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "graph/op.h"
#include "ops/check/test_device.h"

namespace arbalest::test {

// Elements in memory order.
struct Tensor {
  TensorType type;
  std::vector<std::byte> bytes;
};

Tensor make_tensor(const TensorType& type, const std::vector<double>& values);
std::vector<double> values_of(const Tensor& tensor);
Tensor converted(const Tensor& tensor, DataType type);

// The operator in a graph of its own, with types inferred from `inputs`; a token stands for an input that is left out.
struct Case {
  Graph graph;
  NodeId node = kNone;

  Case(const Op& op, const std::vector<TensorType>& inputs, int output_count, const Attributes& attributes,
       const std::string& name = "under_test");
  const Node& get() const { return graph.nodes[node]; }
  std::vector<TensorType> input_types() const;
  std::vector<TensorType> output_types() const;
};

struct RunOptions {
  StepScalars scalars = {};
  MathMode math = MathMode::Fp32;
  bool deterministic = false;
  int concurrent = 1;         // as KernelRequest has it
  bool share_aliases = true;  // outputs in the memory of their inputs, if Op::aliases or Op::overwrites says so
  int replays = 0;            // CUDA: run from a recording; the inputs change after the recording was made
  double measure = 0;         // seconds for which the kernel is run again and again to take its time; 0: it is not
};

struct Outcome {
  std::vector<Tensor> outputs;
  std::string fault;        // "" or what the kernel touched that it must not
  double microseconds = 0;  // of one run, the median; 0: not measured
};

// Runs one kernel between guard bytes, its outputs poisoned before.
Outcome run_kernel(TestDevice& device, const Node& node, const std::vector<TensorType>& output_types,
                   const std::vector<Tensor>& inputs, const RunOptions& options);

// ‖out − reference‖ / ‖reference‖; NaN if either holds one; ‖out‖ if the reference is 0.
double relative_error(const Tensor& out, const Tensor& reference);

// The sample's inputs, drawn with `seed`; floating ones as `type` if the operand is lowered.
std::vector<Tensor> draw_inputs(const Op& op, const Sample& sample, DataType type, uint64_t seed);

// Runs the sample on `device` in `type` and compares each output with the oracle, by norm and element by element.
// Returns "" or the fault.
std::string compare_with_oracle(TestDevice& device, const Op& op, const Sample& sample, DataType type,
                                const RunOptions& options, double tolerance);

// Compares op.grad with central finite differences of Σ r·Y, in double: for each floating output Y by itself, and for
// all of them together. Outputs but the first for which op.grad throws GraphError pass no gradient on. Returns "" or
// the fault.
std::string check_gradient(const Op& op, const Sample& sample);

// Faults found with the operator's samples, one sentence each: of its CPU kernel against the oracle in every precision,
// of its gradient, and of its CUDA kernel against the oracle. `takes` is asked before each sample, and false leaves it
// out.
std::vector<std::string> faults_on_cpu(const Op& op);
std::vector<std::string> faults_of_gradient(const Op& op);
std::vector<std::string> faults_on_cuda(TestDevice& device, const Op& op, const std::function<bool()>& takes = {});

// The time that a device takes for one of an operator's samples, and its least work.
struct Performance {
  double microseconds = 0;  // of one run, the median; on a GPU from a recording, with the wait for its end
  Cost cost;
};
// Runs the sample's kernel for `seconds`. Throws what the kernel throws.
Performance measure_sample(TestDevice& device, const Op& op, const Sample& sample, DataType type, double seconds);

}  // namespace arbalest::test
