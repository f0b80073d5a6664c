// SPDX-License-Identifier: Apache-2.0
#include "ops/data/augmentation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/checked.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

constexpr int64_t kMostExtent = 1 << 20;                   // of images, padding and crops
constexpr int64_t kMostElements = (int64_t{1} << 31) - 1;  // of an image and a crop: what is in them is counted in int

// [height, width] of the output.
std::vector<int64_t> crop_of(const Node& node, const Shape& image) {
  const std::vector<int64_t> crop = ints_attribute(node, "crop");
  return crop.empty() ? std::vector<int64_t>{image[2], image[3]} : crop;
}

// Mean or deviation of each channel; one number serves all.
std::vector<double> per_channel(const Node& node, std::string_view name, const Shape& image, double fallback) {
  const int64_t channels = image[1];
  std::vector<double> values = floats_attribute(node, name);
  if (values.empty()) values.push_back(fallback);
  if (values.size() == 1) values.resize(size_t(channels), values[0]);
  if (int64_t(values.size()) != channels) {
    fail(node, fmt::format("attribute '{}' has {} numbers; expected 1 or one for each of {} channels{}", name,
                           values.size(), channels,
                           image[3] == int64_t(values.size()) ? "; images come as N, C, H, W, not as N, H, W, C" : ""));
  }
  return values;
}

double number_up_to(const Node& node, std::string_view name, double most) {
  const double number = float_attribute(node, name);
  if (number >= 0 && number <= most) return number;
  fail(node, fmt::format("attribute '{}' is {}; expected 0 to {}", name, number, most));
}

// The crop is 0.875 of the scaled image along the axis of which it takes the larger part: 224 of 256.
int64_t default_resize(int64_t height, int64_t width, const std::vector<int64_t>& crop) {
  const int64_t shorter = std::min(height, width);
  const auto usual = [&](int64_t wanted, int64_t extent) {
    return int64_t(round_of({__int128{8} * wanted * shorter, 7 * extent}));
  };
  const auto least = [&](int64_t wanted, int64_t extent) { return (wanted * shorter + extent - 1) / extent; };
  return std::max({usual(crop[0], height), usual(crop[1], width), least(crop[0], height), least(crop[1], width)});
}

struct ImageExtents {
  int64_t height, width;
};

// Extents of the padded image, scaled so that its shorter side is `resize`.
ImageExtents scaled_extents(const Node& node, int64_t height, int64_t width, const std::vector<int64_t>& crop) {
  int64_t shorter = int_attribute(node, "resize");
  if (shorter == 0) shorter = default_resize(height, width, crop);
  const int64_t least = std::min(height, width);
  return {shorter * height / least, shorter * width / least};
}

void check_extents(InferContext& context, const Shape& image, int64_t pad, const std::vector<int64_t>& crop) {
  const Node& node = context.node();
  if (crop.size() != 2) context.fail(fmt::format("attribute 'crop' has {} numbers; expected 2", crop.size()));
  const bool resizes = !floats_attribute(node, "area").empty();
  for (size_t axis = 0; axis < 2; ++axis) {
    const int64_t extent = image[axis + 2], padded = extent + 2 * pad, most = resizes ? kMostExtent : padded;
    if (extent > kMostExtent || (resizes && extent == 0)) {
      context.fail(fmt::format("input 'image' is {} high and {} wide; expected {} to {}", image[2], image[3],
                               int(resizes), kMostExtent));
    }
    if (crop[axis] >= 1 && crop[axis] <= most) continue;
    const std::string found = fmt::format("attribute 'crop' is {}; expected 1 to {}", to_string(crop, '[', ']'), most);
    if (resizes) context.fail(found);
    context.fail(fmt::format("{} for the padded {} of input 'image', {}", found, axis == 0 ? "height" : "width",
                             to_string(context.input(0))));
  }
  for (const int64_t pixels : {image[2] * image[3], crop[0] * crop[1]}) {
    if (pixels <= kMostElements / std::max<int64_t>(1, image[1])) continue;
    context.fail(fmt::format("images of {} pixels and {} channels; expected at most {} elements", pixels, image[1],
                             kMostElements));
  }
  const int64_t resize = int_attribute(node, "resize");
  if (resize == 0) return;
  if (!resizes) context.fail("attribute 'resize' is given without 'area', which says that images are scaled");
  if (resize < 0 || resize > kMostExtent) {
    context.fail(fmt::format("attribute 'resize' is {}; expected 0 to {}", resize, kMostExtent));
  }
  const auto [height, width] = scaled_extents(node, image[2] + 2 * pad, image[3] + 2 * pad, crop);
  if (height >= crop[0] && width >= crop[1]) return;
  context.fail(fmt::format("attribute 'resize' is {}, which scales images to {} by {}; expected at least the crop, {}",
                           resize, height, width, to_string(crop, '[', ']')));
}

void check_colours(InferContext& context, int64_t channels) {
  for (const char* name : {"brightness", "contrast", "saturation", "hue", "grey"}) {
    const std::string_view known = name;
    const bool of_one = known == "brightness" || known == "contrast";
    const double most = known == "hue" ? 0.5 : known == "grey" ? 1 : 100;
    if (number_up_to(context.node(), name, most) == 0 || channels == 3 || (channels == 1 && of_one)) continue;
    context.fail(fmt::format("attribute '{}' needs images of 3 channels{}; input 'image' has {}", name,
                             of_one ? ", or of 1" : "", channels));
  }
}

}  // namespace

namespace {

// Attributes that shape what another one asks for would do nothing without that.
void check_companions(InferContext& context) {
  const Node& node = context.node();
  const bool scales = !floats_attribute(node, "area").empty(), erases = float_attribute(node, "erase") > 0;
  const auto check = [&](const char* name, const char* needed, bool there) {
    if (there || !node.attributes.find(name)) return;
    context.fail(fmt::format("attribute '{}' does nothing without '{}'; expected both or neither", name, needed));
  };
  check("ratio", "area", scales);
  check("erase_area", "erase", erases);
  check("erase_ratio", "erase", erases);
}

}  // namespace

void infer_augment(InferContext& context) {
  const Node& node = context.node();
  const TensorType& image = context.input(0);
  if (image.dtype != DataType::Uint8 || image.shape.size() != 4) {
    context.fail(fmt::format("input 'image' is {}; expected uint8[N,C,H,W]", to_string(image)));
  }
  const int64_t pad = int_attribute_from(node, "pad", 0), channels = image.shape[1];
  if (pad > kMostExtent) context.fail(fmt::format("attribute 'pad' is {}; expected 0 to {}", pad, kMostExtent));
  for (const char* flag : {"flip", "vertical_flip", "random"}) flag_attribute(node, flag);
  const std::vector<int64_t> crop = crop_of(node, image.shape);
  check_extents(context, image.shape, pad, crop);
  if (!floats_attribute(node, "area").empty()) area_range(node, "area");
  log_ratio_range(node, "ratio");
  number_up_to(node, "rotate", 180);
  check_colours(context, channels);
  number_up_to(node, "erase", 1);
  area_range(node, "erase_area");
  log_ratio_range(node, "erase_ratio");
  check_companions(context);
  for (const double mean : per_channel(node, "mean", image.shape, 0)) {
    if (!(mean >= 0 && mean <= 1)) {
      context.fail(fmt::format("attribute 'mean' holds {}; expected 0 to 1: pixels are divided by 255 first", mean));
    }
  }
  for (const double deviation : per_channel(node, "std", image.shape, 1)) {
    if (!(float(deviation) > 0) || !std::isfinite(1 / float(deviation)) || !std::isfinite(float(deviation))) {
      context.fail(fmt::format("attribute 'std' holds {}; expected floats of more than 0", deviation));
    }
  }
  context.set_output(0, {DataType::Float32, {image.shape[0], channels, crop[0], crop[1]}});
}

void augment_for_inference(Graph& graph, NodeId id) {
  Node& node = graph.nodes[id];
  node.attributes.set("random", int64_t{0});
  if (floats_attribute(node, "area").empty() || int_attribute(node, "resize") != 0) return;
  const Shape& image = graph.values[node.inputs[0]].type.shape;
  const int64_t pad = int_attribute(node, "pad");
  node.attributes.set("resize", default_resize(image[2] + 2 * pad, image[3] + 2 * pad, crop_of(node, image)));
}

Augmentation::Augmentation(const KernelRequest& request) {
  const Node& node = request.node;
  const Shape &image = request.inputs[0].shape, &crop = request.outputs[0].shape;
  batch = image[0];
  channels = int(image[1]), height = int(image[2]), width = int(image[3]);
  crop_height = int(crop[2]), crop_width = int(crop[3]);
  pad = int(int_attribute(node, "pad"));
  random = int_attribute(node, "random") != 0;
  flip = random && int_attribute(node, "flip") != 0;
  vertical_flip = random && int_attribute(node, "vertical_flip") != 0;
  placement_hash = hash_name(node.name);
  rest_hash = hash_name(node.name + "/rest");
  if (!floats_attribute(node, "area").empty()) {
    resizes = true;
    const auto [rows, columns] = scaled_extents(node, padded_height(), padded_width(), {crop[2], crop[3]});
    scaled_height = rows, scaled_width = columns;
    area = area_range(node, "area");
    log_ratio = log_ratio_range(node, "ratio");
  }
  if (!random) return;
  rotate = float_attribute(node, "rotate") * std::numbers::pi / 180;
  brightness = float_attribute(node, "brightness"), contrast = float_attribute(node, "contrast");
  saturation = float_attribute(node, "saturation"), hue = float_attribute(node, "hue");
  grey = float_attribute(node, "grey"), erase = float_attribute(node, "erase");
  erase_area = area_range(node, "erase_area");
  const Range height_to_width = log_ratio_range(node, "erase_ratio");
  log_erase_ratio = {-height_to_width.most, -height_to_width.least};
}

Normalisation::Normalisation(const KernelRequest& request) {
  const Shape& image = request.inputs[0].shape;
  const int64_t channels = image[1];
  const std::vector<double> mean = per_channel(request.node, "mean", image, 0);
  const std::vector<double> deviation = per_channel(request.node, "std", image, 1);
  for (size_t c = 0; c < size_t(channels); ++c) {
    scale.push_back(1 / (255 * deviation[c]));
    shift.push_back(-mean[c] / deviation[c]);
  }
}

}  // namespace arbalest
