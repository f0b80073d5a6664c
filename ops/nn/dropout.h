// SPDX-License-Identifier: Apache-2.0
#pragma once
// Dropout and operators like it. What is dropped is the same in forward and backward kernels, on CPUs and GPUs.

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "base/host_device.h"
#include "base/random.h"
#include "graph/op.h"

namespace arbalest {

struct DropoutOutput {
  enum : size_t { Y, Mask };
};

// A node draws for each element. Elements are numbered as they lie in memory; four neighbours share a draw. Draws of a
// batch follow those of all batches before it in the epoch, whose positions are less.
struct Drawing {
  int64_t count;    // of elements
  uint64_t stream;  // tells the graph's nodes apart

  ARBALEST_HOST_DEVICE int64_t draws() const { return (count + 3) / 4; }
  // For elements 4 · draw to 4 · draw + 3.
  ARBALEST_HOST_DEVICE Random4 draw_of(const StepScalars& scalars, int64_t draw) const {
    return philox(random_key(scalars.seed, stream), scalars.epoch,
                  scalars.position * uint64_t(draws()) + uint64_t(draw));
  }
};

struct Dropping : Drawing {
  float ratio, scale;  // of those that are dropped; what the others are multiplied by

  // `name`: the name of the node that drops.
  Dropping(const Node& node, std::string_view name, int64_t elements)
      : Drawing{elements, hash_name(name) + uint64_t(int_attribute(node, "seed"))},
        ratio(float(float_attribute(node, "ratio"))),
        scale(float(1 / (1 - float_attribute(node, "ratio")))) {}

  // Whether element 4 · draw + i is kept is keeps(draw_of(…), i).
  ARBALEST_HOST_DEVICE bool keeps(const Random4& draw, int i) const { return uniform(draw.word[i]) >= ratio; }
};

// Registers an operator that drops in training, and its gradient, arbalest.<NAME>Grad, which drops the same of dY, or
// of X where the output is computed again. `op` has only what others of the kind have not; its first two attributes are
// ratio and seed. The gradient's third one is `node`, the name of the node that drops.
void register_dropping(OpRegistry& registry, Op op, std::vector<Sample> (*gradient_samples)(),
                       KernelFactory gradient_cpu);

// Samples of such an operator, for each shape with each ratio.
std::vector<Sample> dropping_samples(std::initializer_list<Shape> shapes, std::initializer_list<double> ratios,
                                     const Attributes& others, int outputs = 1);

}  // namespace arbalest
