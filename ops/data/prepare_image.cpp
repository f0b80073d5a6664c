// SPDX-License-Identifier: Apache-2.0
#include "ops/data/prepare_image.h"

#include <fmt/format.h>

#include <algorithm>

namespace arbalest {

PreparedSize::PreparedSize(const Node& node) {
  const std::vector<int64_t> size = ints_attribute(node, "size");
  constexpr int64_t kMost = 16384;
  const auto fits = [](int64_t extent) { return extent >= 1 && extent <= kMost; };
  if (size.empty() || size.size() > 2 || !std::all_of(size.begin(), size.end(), fits)) {
    fail(node, fmt::format("attribute 'size' is {}; expected [height, width] or [side], each from 1 to {}",
                           to_string(size, '[', ']'), kMost));
  }
  height = size.front();
  width = size.back();
  const int64_t written = int_attribute(node, "channels");
  if (written != 1 && written != 3) {
    fail(node, fmt::format("attribute 'channels' is {}; expected 1, grey, or 3, red, green and blue", written));
  }
  channels = int(written);
}

std::vector<AttributeSpec> prepared_size_specs() {
  return {required_spec("size", AttributeKind::Ints, "[height, width], or [side], of what comes out"),
          int_spec("channels", 3, "1: grey; 3: red, green, blue; files that have others are converted")};
}

void infer_prepared(InferContext& context) {
  const TensorType& files = context.input(0);
  if (files.dtype != DataType::String || files.shape.size() != 1) {
    context.fail(fmt::format("input 'image' is {}; expected string[N], files as folder:, csv: and tar: read them",
                             to_string(files)));
  }
  const PreparedSize size(context.node());
  const int64_t resize = int_attribute_from(context.node(), "resize", 0), shorter = std::min(size.height, size.width);
  if (resize > 0 && resize < shorter) {
    context.fail(
        fmt::format("attribute 'resize' is {}, and no {} by {} can be cut out of an image that is scaled to it; "
                    "expected at least {}",
                    resize, size.height, size.width, shorter));
  }
  context.set_output(0, {DataType::Uint8, {files.shape[0], size.channels, size.height, size.width}});
}

Region crop_of_resized(const ImageInfo& image, int64_t resize, const PreparedSize& size, double down, double right) {
  const auto width = double(image.width), height = double(image.height);
  double scale = double(resize) / std::min(width, height);  // of the scaled image to the file's
  scale = std::max({scale, double(size.width) / width, double(size.height) / height});
  Region region;
  region.width = std::min(width, double(size.width) / scale);
  region.height = std::min(height, double(size.height) / scale);
  region.left = (width - region.width) * right;
  region.top = (height - region.height) * down;
  return region;
}

void prepare_without_chance(Graph& graph, NodeId node) {
  graph.nodes[node].attributes.set("random", int64_t{0});
}

}  // namespace arbalest
