// SPDX-License-Identifier: Apache-2.0
#pragma once
// Helpers that pooling operators share: attributes, the shapes of global ones, cost, and cases of their samples.

#include <string>
#include <vector>

#include "ops/definition.h"
#include "ops/nn/window.h"

namespace arbalest {

// kernel_shape, strides, pads, dilations, auto_pad, ceil_mode, and `own`.
std::vector<AttributeSpec> pool_specs(AttributeSpec own);

// An operation for each element that is read.
Cost pool_cost(const Graph& graph, const Node& node);

// (N, C, 1, …): a pixel a channel, for an image (N, C, …).
Shape global_pool_shape(const Shape& image);
// The output is of that shape; fails if the image has no pixels.
void infer_global_pool(InferContext& context);

// A window that is the same along every spatial axis of an image (N, C, …).
struct PoolCase {
  std::string name;
  Shape shape;
  int64_t kernel = 1, stride = 1, pad_begin = 0, pad_end = 0, dilation = 1, ceil_mode = 0;
  std::string auto_pad = "NOTSET";

  Attributes attributes() const;
  Shape pooled() const;
};

}  // namespace arbalest
