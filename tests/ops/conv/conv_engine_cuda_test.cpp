// SPDX-License-Identifier: Apache-2.0

// Which of our kernels for convolutions there are on which devices. Compiled only with CUDA; needs no GPU.

#include "ops/cuda/convolution_engine.h"

#include <doctest/doctest.h>

#include <string>

#include "ops/conv/conv_solution.h"
#include "ops/conv/hopper/conv_halo.h"
#include "ops/conv/hopper/conv_pointwise.h"
#include "ops/cuda/tensor_map.h"
#include "ops/norm/statistics_chunks.h"

using namespace arbalest;

namespace conv_engine_cuda_test {
namespace {

using Chosen = ConvolutionEngine::Chosen;

ConvolutionProblem problem_of(const Shape& x, const Shape& w, int64_t pad) {
  ConvolutionProblem problem;
  problem.type = problem.output_type = DataType::Bfloat16;
  problem.x = x;
  problem.w = w;
  problem.y = {x[0], w[0], x[2] + 2 * pad - w[2] + 1, x[3] + 2 * pad - w[3] + 1};
  problem.stride = problem.dilation = {1, 1};
  problem.pad_begin = problem.pad_end = {pad, pad};
  return problem;
}

// "": only cuDNN's engines, or plain loops.
std::string first_timed(const char* device, const ConvolutionProblem& problem) {
  const ConvolutionEngine* engine = first_engine(Chosen::Timed, device_model(device), problem);
  return engine == nullptr ? "" : engine->name;
}

}  // namespace

TEST_CASE("devices have the kernels for convolutions that they can run") {
  const ConvolutionProblem thin = problem_of({64, 16, 32, 32}, {16, 16, 3, 3}, 1);
  const ConvolutionProblem small = problem_of({64, 20, 12, 12}, {50, 20, 5, 5}, 0);
  const ConvolutionProblem digits = problem_of({64, 1, 28, 28}, {20, 1, 5, 5}, 0);
  const ConvolutionProblem colours = problem_of({32, 3, 224, 224}, {64, 3, 3, 3}, 1);
  for (const char* device : {"A100", "H200", "B200"}) {
    CHECK(first_timed(device, thin) == "thin");
    CHECK(first_timed(device, small) == "small");
  }
  for (const char* device : {"RTX 3090", "L4", "RTX 5090"}) {  // less shared memory
    CHECK(first_timed(device, thin) == "");
    CHECK(first_timed(device, small) == "");
    CHECK(first_timed(device, colours) == "colours");
    CHECK(first_timed(device, digits) == "colours");
  }
}

TEST_CASE("only Hopper has the kernels that its copy engine feeds") {
  const ConvolutionProblem halo = problem_of({32, 128, 28, 28}, {128, 128, 3, 3}, 1);
  const ConvolutionProblem pointwise = problem_of({32, 256, 14, 14}, {512, 256, 1, 1}, 0);
  for (const char* name : {"A100", "L4", "H100", "H200", "B200", "RTX 5090"}) {
    CAPTURE(name);
    const DeviceModel device = device_model(name);
    const bool hopper = has_hopper_kernels(device);
    CHECK((!hopper || device.architecture == 90));
    CHECK(first_timed(name, halo) == (hopper ? "3 x 3" : ""));
    CHECK(kHaloStatistics.accepts(device, halo, halo_chunk_pixels(halo.y, device.multiprocessors)) == hopper);
    CHECK(kPointwiseStatistics.accepts(device, pointwise,
                                       pointwise_chunk_pixels(pointwise.y, device.multiprocessors)) == hopper);
  }
}

TEST_CASE("depthwise convolutions have kernels on every device, and plain loops take all") {
  const ConvolutionProblem depthwise = problem_of({8, 32, 14, 14}, {32, 1, 3, 3}, 1);
  const ConvolutionProblem groups = problem_of({8, 32, 14, 14}, {32, 4, 3, 3}, 1);
  for (const char* name : {"A100", "H200"}) {
    const DeviceModel device = device_model(name);
    REQUIRE(first_engine(Chosen::First, device, depthwise) != nullptr);
    CHECK(first_engine(Chosen::First, device, groups) == nullptr);
    CHECK(std::string(first_engine(Chosen::Last, device, groups)->name) == "plain loops");
  }
}

}  // namespace conv_engine_cuda_test
