// RandomResizedCrop: a random part of a photo, scaled to one size, as photos are trained on.

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "graph/random.h"
#include "ops/data/prepare_image.h"

namespace arbalest {
namespace {

constexpr int kTries = 10;
constexpr double kMiddle = 0.875;  // of the shorter side, which validation sees

struct Range {
  double least, most;
};

Range range_of(const Node& node, std::string_view name, double below) {
  const std::vector<double> range = floats_attribute(node, name);
  const bool good = range.size() == 2 && range[0] > 0 && range[0] <= range[1] && range[1] <= below;
  if (!good) {
    fail(node, fmt::format("attribute '{}' is [{}]; expected [least, most], above 0 and at most {}", name,
                           fmt::join(range, ", "), below));
  }
  return {range[0], range[1]};
}

class Crop final : public Preparation {
 public:
  explicit Crop(const PreparationRequest& request)
      : size_(request.node),
        area_(range_of(request.node, "area", 1)),
        ratio_(range_of(request.node, "ratio", 1000)),
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
  // The area is uniform, the logarithm of the ratio of width to height too; ten tries for one that lies in the image,
  // then the largest part in the middle whose ratio is allowed.
  Region drawn(const ImageInfo& image, const SampleKey& key) const {
    const auto width = double(image.width), height = double(image.height);
    for (int attempt = 0; attempt < kTries; ++attempt) {
      const Random4 draw =
          philox(random_key(key.seed, name_hash_), key.epoch, key.position * kTries + uint64_t(attempt));
      const double area = (area_.least + (area_.most - area_.least) * uniform(draw.word[0])) * width * height;
      const double ratio = ratio_.least * std::pow(ratio_.most / ratio_.least, double(uniform(draw.word[1])));
      const int64_t w = std::llround(std::sqrt(area * ratio)), h = std::llround(std::sqrt(area / ratio));
      if (w < 1 || h < 1 || w > image.width || h > image.height) continue;
      return {double(below(draw.word[3], uint32_t(image.width - w + 1))),
              double(below(draw.word[2], uint32_t(image.height - h + 1))), double(w), double(h)};
    }
    const double ratio = std::clamp(width / height, ratio_.least, ratio_.most);
    const double w = std::min(width, height * ratio), h = std::min(height, width / ratio);
    return {(width - w) / 2, (height - h) / 2, w, h};
  }

  const PreparedSize size_;
  const Range area_, ratio_;
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
                      range_of(context.node(), "area", 1);
                      range_of(context.node(), "ratio", 1000);
                      int_attribute_from(context.node(), "resize", 0);
                      flag_attribute(context.node(), "random");
                    },
                .for_inference = prepare_without_chance,
                .prepare = [](const PreparationRequest& request) { return std::make_unique<Crop>(request); }});
}

}  // namespace arbalest
