// SPDX-License-Identifier: Apache-2.0

// RandomResizedCrop: a random part of a photo, scaled to one size, as photos are trained on.

#include <cmath>

#include "ops/data/prepare_image.h"
#include "ops/data/random_box.h"

namespace arbalest {
namespace {

constexpr double kMiddle = 0.875;  // of the shorter side, which validation sees

// The words that a sample's tries are made of.
struct Tries {
  static constexpr uint64_t kMost = 10;
  uint64_t key, epoch, position;

  Random4 operator()(int attempt) const { return philox(key, epoch, position * kMost + uint64_t(attempt)); }
};

class Crop final : public Preparation {
 public:
  explicit Crop(const PreparationRequest& request)
      : size_(request.node),
        area_(area_range(request.node, "area")),
        log_ratio_(log_ratio_range(request.node, "ratio")),
        resize_(int_attribute_from(request.node, "resize", 0)),
        random_(flag_attribute(request.node, "random")),
        name_hash_(hash_name(request.node.name)) {
    if (resize_ == 0) resize_ = std::llround(double(std::min(size_.height, size_.width)) / kMiddle);
  }

  void run(std::span<const std::byte> bytes, const SampleKey& key, std::byte* out, PreparationTimes& times) override {
    const ImageInfo image = decoder_.open(bytes);
    const Region region = random_ ? drawn(image, key) : crop_of_resized(image, resize_, size_, 0.5, 0.5);
    decoder_.decode(region, size_.height, size_.width, size_.channels, reinterpret_cast<uint8_t*>(out), times);
  }

 private:
  Region drawn(const ImageInfo& image, const SampleKey& key) const {
    const int height = int(image.height), width = int(image.width);
    const Tries tries{random_key(key.seed, name_hash_), key.epoch, key.position};
    Box box = random_box(tries, 0, area_, log_ratio_, height, width, 0);
    if (box.height == 0) box = middle_box(log_ratio_, height, width);
    return {double(box.left), double(box.top), double(box.width), double(box.height)};
  }

  const PreparedSize size_;
  const Range area_, log_ratio_;
  int64_t resize_;
  const bool random_;
  const uint64_t name_hash_;
  ImageDecoder decoder_;
};

}  // namespace

void register_data_random_resized_crop(OpRegistry& registry) {
  std::vector<AttributeSpec> attributes = prepared_size_specs();
  attributes.insert(attributes.end(),
                    {floats_spec("area", {0.08, 1}, "[least, most] of the image's area that a crop has"),
                     floats_spec("ratio", {0.75, 4.0 / 3}, "[least, most] of a crop's width to its height"),
                     int_spec("resize", 0,
                              "validation scales the shorter side to so many pixels and takes the middle; "
                              "0: size / 0.875, the shorter one"),
                     int_spec("random", 1, "0: the middle, as in validation, which sets it")});
  registry.add({.domain = "arbalest",
                .name = "RandomResizedCrop",
                .doc = "a random part of each image file, scaled to one size; runs on the host, while batches are read",
                .inputs = {{.name = "image"}},
                .outputs = {{.name = "pixels"}},
                .attributes = std::move(attributes),
                .random = true,
                .layout = Layout::ChannelsLast,
                .infer =
                    [](InferContext& context) {
                      infer_prepared(context);
                      area_range(context.node(), "area");
                      log_ratio_range(context.node(), "ratio");
                      flag_attribute(context.node(), "random");
                    },
                .for_inference = prepare_without_chance,
                .prepare = [](const PreparationRequest& request) { return std::make_unique<Crop>(request); }});
}

}  // namespace arbalest
