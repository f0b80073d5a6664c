// SPDX-License-Identifier: Apache-2.0

// ResizeCrop: image files scaled, then cut, to one size.

#include <algorithm>
#include <cstring>

#include "base/checked.h"
#include "base/random.h"
#include "ops/data/prepare_image.h"

namespace arbalest {
namespace {

enum class Fit { Crop, Stretch, Pad };

Fit fit_of(const Node& node) {
  const std::string fit = string_attribute(node, "fit");
  return fit == "stretch" ? Fit::Stretch : fit == "pad" ? Fit::Pad : Fit::Crop;
}

class ResizeCrop final : public Preparation {
 public:
  explicit ResizeCrop(const PreparationRequest& request)
      : size_(request.node),
        fit_(fit_of(request.node)),
        resize_(int_attribute(request.node, "resize")),
        random_(int_attribute(request.node, "random") != 0),
        name_hash_(hash_name(request.node.name)) {}

  void run(std::span<const std::byte> bytes, const SampleKey& key, std::byte* out, PreparationTimes& times) override {
    const ImageInfo image = decoder_.open(bytes);
    auto* pixels = reinterpret_cast<uint8_t*>(out);
    const Region whole{0, 0, double(image.width), double(image.height)};
    switch (fit_) {
      case Fit::Crop: {
        double down = 0.5, right = 0.5;
        if (random_) {
          const Random4 draw = philox(random_key(key.seed, name_hash_), key.epoch, key.position);
          down = uniform(draw.word[0]);
          right = uniform(draw.word[1]);
        }
        const Region part = crop_of_resized(image, resize_, size_, down, right);
        decoder_.decode(part, size_.height, size_.width, size_.channels, pixels, times);
        break;
      }
      case Fit::Stretch: decoder_.decode(whole, size_.height, size_.width, size_.channels, pixels, times); break;
      case Fit::Pad: pad(image, whole, pixels, times); break;
    }
  }

 private:
  // The whole image in the middle, black around it.
  void pad(const ImageInfo& image, const Region& whole, uint8_t* out, PreparationTimes& times) {
    const bool fills_width = size_.width * image.height <= size_.height * image.width;
    const Quotient scale = fills_width ? Quotient{size_.width, image.width} : Quotient{size_.height, image.height};
    const auto scaled = [&](int64_t extent) {
      return std::max<int64_t>(1, int64_t(round_of({extent * scale.over, scale.under})));
    };
    const int64_t width = scaled(image.width), height = scaled(image.height);
    scaled_.resize(size_t(width * height * size_.channels));
    decoder_.decode(whole, height, width, size_.channels, scaled_.data(), times);
    const auto row = size_t(width * size_.channels);
    std::memset(out, 0, size_t(size_.height * size_.width * size_.channels));
    out += ((size_.height - height) / 2 * size_.width + (size_.width - width) / 2) * size_.channels;
    for (int64_t y = 0; y < height; ++y) {
      std::memcpy(out + y * size_.width * size_.channels, scaled_.data() + size_t(y) * row, row);
    }
  }

  const PreparedSize size_;
  const Fit fit_;
  const int64_t resize_;
  const bool random_;
  const uint64_t name_hash_;
  ImageDecoder decoder_;
  std::vector<uint8_t> scaled_;
};

void infer_resize_crop(InferContext& context) {
  infer_prepared(context);
  const int64_t resize = int_attribute(context.node(), "resize");
  const bool random = flag_attribute(context.node(), "random");
  if (fit_of(context.node()) != Fit::Crop && (resize > 0 || random)) {
    context.fail("attributes 'resize' and 'random' say where a crop is taken; with another 'fit' nothing is cut off");
  }
}

}  // namespace

void register_data_resize_crop(OpRegistry& registry) {
  std::vector<AttributeSpec> attributes = prepared_size_specs();
  AttributeSpec fit = string_spec("fit", "crop",
                                  "crop: what the other shape has too much is cut off; stretch: it is stretched; "
                                  "pad: black is put around it");
  fit.choices = {"crop", "stretch", "pad"};
  attributes.insert(attributes.end(),
                    {std::move(fit),
                     int_spec("resize", 0,
                              "the shorter side is scaled to so many pixels first; 0: no more than `size` "
                              "needs"),
                     int_spec("random", 0, "1: in training the crop lies anywhere, otherwise in the middle")});
  registry.add({.domain = "arbalest",
                .name = "ResizeCrop",
                .doc = "image files scaled and cut to one size; runs on the host, while batches are read",
                .inputs = {{.name = "image"}},
                .outputs = {{.name = "pixels"}},
                .attributes = std::move(attributes),
                .random = true,
                .layout = Layout::ChannelsLast,
                .infer = infer_resize_crop,
                .for_inference = prepare_without_chance,
                .prepare = [](const PreparationRequest& request) { return std::make_unique<ResizeCrop>(request); }});
}

}  // namespace arbalest
