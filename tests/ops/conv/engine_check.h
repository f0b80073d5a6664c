// SPDX-License-Identifier: Apache-2.0
#pragma once
// The check that every kernel of ours for convolutions has to pass. Compiled only with CUDA.

#include <doctest/doctest.h>

#include <algorithm>
#include <initializer_list>

#include "ops/conv/grouped/conv_direct.h"
#include "tests/ops/conv/convolution_form.h"
#include "tests/ops/lowered_tensor.h"

namespace arbalest::test {

inline bool accepts(const ConvolutionEngine& engine, const ConvolutionProblem& problem) {
  return engine.accepts(device_model("A100"), problem);
}

// False, and said so, without a GPU.
inline bool has_gpu() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) return true;
  MESSAGE("SKIP: no GPU");
  return false;
}

// Checks that the engine makes of noise what plain loops make in float, within rounding, and the same bits each time.
// `processors`, counts of multiprocessors, say how many tiles a block has.
inline void check_engine(const ConvolutionEngine& engine, const ConvolutionProblem& problem,
                         std::initializer_list<int> processors) {
  using Kind = ConvolutionProblem::Kind;
  CAPTURE(problem.key());
  REQUIRE(accepts(engine, problem));
  const Kind kind = problem.kind;
  const LoweredTensor a = lowered_noise(kind == Kind::GradInput ? problem.y : problem.x, 1),
                      b = lowered_noise(kind == Kind::GradWeight ? problem.y : problem.w, 2);
  const DeviceBuffer bias = noise({problem.w[0]}, 3);
  const auto* bias_data = kind == Kind::ForwardBias ? static_cast<const float*>(bias.data()) : nullptr;
  ConvolutionProblem exact = problem;
  exact.type = exact.output_type = DataType::Float32;
  DeviceBuffer expected = room_for(problem.output_shape());
  kPlainLoopsEngine.run(
      exact,
      {.multiprocessors = 132, .a = a.exact.data(), .b = b.exact.data(), .bias = bias_data, .result = expected.data()});
  std::vector<float> right = content(expected, problem.output_shape());
  if (problem.relu) std::for_each(right.begin(), right.end(), [](float& value) { value = std::max(value, 0.0f); });
  const int64_t pixels = kind == Kind::GradWeight ? problem.y[0] * problem.y[2] * problem.y[3] : 1;
  for (const int count : processors) {
    CAPTURE(count);
    const DeviceBuffer workspace(engine.workspace_bytes(problem, count));
    std::vector<float> results[2];
    for (std::vector<float>& result : results) {
      DeviceBuffer found = room_for(problem.output_shape());
      engine.run(problem, {.multiprocessors = count,
                           .a = a.lowered.data(),
                           .b = b.lowered.data(),
                           .bias = bias_data,
                           .result = found.data(),
                           .workspace = workspace.data()});
      result = content(found, problem.output_shape(), problem.output_type);
    }
    CHECK(results[0] == results[1]);
    CHECK(worst_share(results[0], right, pixels) < 1);
  }
}

}  // namespace arbalest::test
