// SPDX-License-Identifier: Apache-2.0
#pragma once
// Detours: another problem with the same result, whose operands are made of the problem's in the workspace. Engines
// may solve it faster, or at all.

#include <functional>
#include <string>
#include <vector>

#include "ops/cuda/cudnn_graph.h"

namespace arbalest {

struct Detour {
  using Change = std::function<void(cudaStream_t stream, const void* from, void* to)>;

  ConvolutionProblem problem;
  Change a = {}, b = {};  // how the operands are made; null: taken as they come
  // How the result is brought back, of the type in which it was made; null: it is the output.
  std::function<void(cudaStream_t stream, DataType made, const void* from, void* to)> back = {};
  double microseconds = 0;  // that all this takes
  std::string name = {};    // of the engine, its end

  // Memory in the workspace; 0: none.
  int64_t a_bytes() const;
  int64_t b_bytes() const;
  int64_t result_bytes() const;
  int64_t workspace_bytes() const { return a_bytes() + b_bytes() + result_bytes(); }
};

// Images of few channels folded into more, in some ways: engines barely use the matrix units for three channels.
std::vector<Detour> ways_to_fold(const ConvolutionProblem& problem, const DeviceModel& device);

// Groups joined to fewer.
std::vector<Detour> ways_of_fewer_groups(const ConvolutionProblem& problem, const DeviceModel& device);

// The padded image in memory: cuDNN has few engines for images padded more on one side than on the other.
Detour padded_image(const ConvolutionProblem& problem, const DeviceModel& device);

}  // namespace arbalest
