// SPDX-License-Identifier: Apache-2.0
#pragma once
// Helpers of host nodes that turn image files into pixels.

#include "graph/preparation.h"
#include "io/images/image.h"
#include "ops/definition.h"

namespace arbalest {

// The attributes that say what comes out: `size` and `channels`.
struct PreparedSize {
  int64_t height, width;
  int channels;

  explicit PreparedSize(const Node& node);  // throws GraphError
};
std::vector<AttributeSpec> prepared_size_specs();

// Type inference of such a node: string[N] to uint8[N,C,H,W], channels-last. Refuses a `resize` that no image could be
// scaled to.
void infer_prepared(InferContext& context);

// Part of an image that is cut out as `height` × `width` after scaling the image's shorter side to `resize`. It lies at
// `down` and `right` of the way (0 … 1; 0.5: the middle). If the scaled image is too small, it is scaled until it
// covers them.
Region crop_of_resized(const ImageInfo& image, int64_t resize, const PreparedSize& size, double down, double right);

// Op::for_inference of such nodes: sets `random` to 0.
void prepare_without_chance(Graph& graph, NodeId node);

}  // namespace arbalest
