// SPDX-License-Identifier: Apache-2.0

// Augment: uint8 images to normalised floats: random crops, scaled or of the padded image, rotated and mirrored, random
// colours and erased rectangles.

#include <fmt/format.h>

#include "ops/cpu.h"
#include "ops/data/augment_pixel.h"
#include "ops/data/augmentation.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

// `count` pixels of C channels, or of as many as are given if C is 0, the last first.
template <int C, typename T>
void mirror_pixels(int64_t count, int64_t given, const uint8_t* x, const Wide<T>* a, const Wide<T>* b, T* y) {
  const int64_t channels = C > 0 ? C : given;
  for (int64_t i = 0; i < count; ++i) {
    T* to = y + (count - 1 - i) * channels;
    for (int64_t c = 0; c < channels; ++c) to[c] = narrow<T>(Wide<T>(x[i * channels + c]) * a[c] + b[c]);
  }
}

// One row of the crop: x is the image's row (width · channels), a and b the channels' scale and shift repeated along
// it.
template <typename T>
void place_row(const Augmentation& size, const Placement& place, const uint8_t* x, const Wide<T>* a, const Wide<T>* b,
               T* y) {
  const int64_t channels = size.channels, columns = size.crop_width, left = place.left;
  // Columns of the crop, before mirroring, that lie in the image.
  const int64_t first = std::clamp<int64_t>(-left, 0, columns);
  const int64_t last = std::clamp<int64_t>(size.width - left, first, columns);
  const uint8_t* from = x + (first + left) * channels;
  const int64_t before = (place.mirrored ? columns - last : first) * channels, count = (last - first) * channels;
  T* to = std::fill_n(y, before, T(0));
  if (!place.mirrored) {
    ARBALEST_INDEPENDENT
    for (int64_t i = 0; i < count; ++i) to[i] = narrow<T>(Wide<T>(from[i]) * a[i] + b[i]);
  } else if (channels == 3) {
    mirror_pixels<3, T>(last - first, channels, from, a, b, to);
  } else {
    mirror_pixels<0, T>(last - first, channels, from, a, b, to);
  }
  std::fill(to + count, y + columns * channels, T(0));
}

// Pixels of the image as they are.
template <typename T>
void place_sample(const Augmentation& size, const Placement& place, const uint8_t* image, const Wide<T>* a,
                  const Wide<T>* b, T* out) {
  const int64_t row = int64_t(size.width) * size.channels, crop_row = int64_t(size.crop_width) * size.channels;
  for (int64_t h = 0; h < size.crop_height; ++h) {
    const int64_t source = (place.upside_down ? size.crop_height - 1 - h : h) + place.top;
    T* y = out + h * crop_row;
    if (source < 0 || source >= size.height) {
      std::fill(y, y + crop_row, T(0));
    } else {
      place_row<T>(size, place, image + source * row, a, b, y);
    }
  }
}

// Pixels that are blended of others, recoloured or erased. C channels at a time: 1, or 3 of 3.
template <int C, typename T>
void make_sample(const Augmentation& size, const PixelView<Wide<T>>& view, const uint8_t* image, const Wide<T>* a,
                 const Wide<T>* b, T* y) {
  for (int row = 0; row < size.crop_height; ++row) {
    for (int column = 0; column < size.crop_width; ++column, y += size.channels) {
      if (view.erased.holds(row, column)) {
        std::fill(y, y + size.channels, T(0));
        continue;
      }
      for (int first = 0; first < size.channels; first += C) {
        Wide<T> value[C];
        const Wide<T> coverage = view.template pixel<C>(image + first, row, column, value);
        for (int c = 0; c < C; ++c) y[first + c] = narrow<T>(coverage * (value[c] * a[first + c] + b[first + c]));
      }
    }
  }
}

std::unique_ptr<Kernel> augment_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  const Augmentation size(request);
  const Normalisation normalisation(request);
  std::vector<Wide<T>> a, b;
  for (int64_t i = 0; i < int64_t(size.crop_width) * size.channels; ++i) {
    a.push_back(Wide<T>(normalisation.scale[size_t(i % size.channels)]));
    b.push_back(Wide<T>(normalisation.shift[size_t(i % size.channels)]));
  }
  return make_kernel([size, a = std::move(a), b = std::move(b)](const KernelContext& context) {
    const int64_t image_size = int64_t(size.height) * size.width * size.channels;
    const int64_t crop_size = int64_t(size.crop_height) * size.crop_width * size.channels;
    const bool places = size.places_only();
    parallel_for(size.batch, places ? crop_size : 16 * crop_size, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const uint8_t* image = input<uint8_t>(context, 0) + n * image_size;
        T* out = output<T>(context, 0) + n * crop_size;
        if (places) {
          const Placement place(size, SampleDraws(size, *context.scalars, n));
          place_sample<T>(size, place, image, a.data(), b.data(), out);
          continue;
        }
        const PixelView<Wide<T>> view(size, *context.scalars, n);
        if (size.channels == 3) {
          make_sample<3, T>(size, view, image, a.data(), b.data(), out);
        } else {
          make_sample<1, T>(size, view, image, a.data(), b.data(), out);
        }
      }
    });
  });
}

std::vector<Sample> augment_samples() {
  const auto sample = [](std::string name, Shape shape, Attributes attributes) {
    return Sample{.name = std::move(name),
                  .inputs = {{{DataType::Uint8, shape}, 0, 255, false}},
                  .attributes = std::move(attributes),
                  .tolerance = 1e-6,
                  .scalars = {.seed = 7, .epoch = 3, .position = 640, .valid = 2}};
  };
  const Attribute mean = std::vector<double>{0.491, 0.482, 0.447}, deviation = std::vector<double>{0.247, 0.243, 0.262};
  return {
      sample("plain", {2, 1, 28, 28}, {}),
      sample("normalised", {3, 3, 5, 7}, {{"mean", mean}, {"std", deviation}}),
      sample("CIFAR-10", {64, 3, 32, 32},
             {{"pad", int64_t{4}}, {"flip", int64_t{1}}, {"mean", mean}, {"std", deviation}}),
      sample("small crop", {5, 3, 9, 8}, {{"crop", std::vector<int64_t>{4, 5}}, {"flip", int64_t{1}}}),
      sample("large crop", {4, 1, 6, 6}, {{"pad", int64_t{3}}, {"crop", std::vector<int64_t>{11, 12}}, {"mean", 0.5}}),
      sample("centred", {3, 1, 28, 28},
             {{"pad", int64_t{2}}, {"crop", std::vector<int64_t>{32, 32}}, {"random", int64_t{0}}}),
      sample("one pixel", {1, 1, 1, 1}, {{"pad", int64_t{1}}, {"flip", int64_t{1}}}),
      sample("upside down", {16, 3, 7, 8}, {{"pad", int64_t{1}}, {"flip", int64_t{1}}, {"vertical_flip", int64_t{1}}}),
  };
}

// Samples that blend, recolour or erase pixels. Float coordinates are off by some 1e-5 of a pixel, and neighbouring
// pixels differ by any amount, hence the tolerance.
std::vector<Sample> augmented_pixel_samples() {
  using Ints = std::vector<int64_t>;
  using Floats = std::vector<double>;
  const auto sample = [](std::string name, Shape shape, const Attributes& attributes) {
    Sample made{.name = std::move(name),
                .inputs = {{{DataType::Uint8, std::move(shape)}, 0, 255, false}},
                .attributes = {{"flip", int64_t{1}}, {"vertical_flip", int64_t{1}}, {"mean", 0.4}, {"std", 0.25}},
                .tolerance = 3e-5,
                .scalars = {.seed = 7, .epoch = 3, .position = 640, .valid = 2}};
    for (const NamedAttribute& attribute : attributes) made.attributes.set(attribute.name, attribute.value);
    return made;
  };
  const Attribute area = Floats{0.08, 1}, half = Floats{0.5, 0.5}, whole = Floats{1, 1};
  const Attribute mean = Floats{0.491, 0.482, 0.447}, deviation = Floats{0.247, 0.243, 0.262};
  const Attributes everything = {{"area", area},      {"rotate", 20.0},  {"brightness", 0.4}, {"contrast", 0.4},
                                 {"saturation", 0.4}, {"hue", 0.1},      {"grey", 0.2},       {"erase", 0.5},
                                 {"mean", mean},      {"std", deviation}};
  std::vector<Sample> samples = {
      sample("parts, smaller", {8, 3, 20, 24}, {{"area", area}, {"crop", Ints{16, 13}}}),
      sample("parts, larger", {8, 1, 9, 8}, {{"area", area}, {"crop", Ints{24, 24}}}),
      sample("parts of the padded image", {8, 3, 16, 16}, {{"area", half}, {"pad", int64_t{3}}}),
      sample("no part fits", {4, 3, 4, 40}, {{"area", whole}, {"crop", Ints{8, 8}}}),
      sample("no part fits, upright", {4, 3, 40, 4}, {{"area", whole}, {"crop", Ints{8, 8}}}),
      sample("middle, scaled", {2, 3, 20, 30}, {{"area", area}, {"crop", Ints{12, 12}}, {"random", int64_t{0}}}),
      sample("middle, scaled to", {2, 2, 20, 30},
             {{"area", area}, {"crop", Ints{12, 17}}, {"resize", int64_t{13}}, {"random", int64_t{0}}}),
      sample("rotated", {8, 3, 16, 12}, {{"rotate", 180.0}}),
      sample("rotated, padded", {8, 1, 11, 13}, {{"rotate", 30.0}, {"pad", int64_t{2}}, {"crop", Ints{13, 12}}}),
      sample("rotated parts of two channels", {8, 2, 16, 16}, {{"rotate", 30.0}, {"area", area}}),
      sample("grey images", {16, 1, 8, 8}, {{"brightness", 0.8}, {"contrast", 1.5}}),
      sample("brightness", {16, 3, 5, 5}, {{"brightness", 1.0}}),
      sample("contrast", {16, 3, 5, 5}, {{"contrast", 0.9}, {"pad", int64_t{1}}}),
      sample("saturation", {16, 3, 5, 5}, {{"saturation", 2.0}}),
      sample("hue", {16, 3, 5, 5}, {{"hue", 0.5}}),
      sample("half of them grey", {16, 3, 8, 8}, {{"grey", 0.5}}),
      sample("erased", {16, 3, 16, 16}, {{"erase", 0.7}}),
      sample("erased of five channels", {9, 5, 9, 11}, {{"erase", 1.0}, {"erase_area", half}}),
      sample("everything", {16, 3, 32, 32}, everything),
      sample("everything, larger", {2, 3, 96, 96}, everything),
      sample("everything, odd sizes", {5, 3, 33, 31}, everything),
      sample("everything, for validation", {3, 3, 32, 40}, everything),
      sample("no images", {0, 3, 8, 8}, everything),
  };
  samples[samples.size() - 2].attributes.set("random", int64_t{0});
  return samples;
}

std::vector<Sample> all_samples() {
  std::vector<Sample> all = augment_samples();
  for (Sample& sample : augmented_pixel_samples()) all.push_back(std::move(sample));
  return all;
}

std::vector<AttributeSpec> attributes() {
  return {
      int_spec("pad", 0, "pixels of zeros on each side, after normalisation"),
      ints_spec("crop", {}, "[height, width] of the output; default: the image's"),
      int_spec("flip", 0, "1: half of the images are mirrored"),
      int_spec("vertical_flip", 0, "1: half of the images are turned upside down"),
      floats_spec("area", {},
                  "[least, most]: a part of the padded image with this share of its area, anywhere in it, is scaled to "
                  "`crop`, as torchvision's RandomResizedCrop does, bilinearly and without antialiasing; default: "
                  "nothing is scaled"),
      floats_spec("ratio", {3.0 / 4, 4.0 / 3}, "[least, most] of that part's width over its height, log-uniform"),
      int_spec(
          "resize", 0,
          "with `area`, where `random` is 0: the shorter side that the padded image is scaled to before its middle "
          "is cropped; 0: what makes `crop` 0.875 of the image, 256 for a crop of 224"),
      float_spec("rotate", 0,
                 "degrees: images turn by −rotate to rotate about the crop's middle, bilinearly, with zeros outside of "
                 "the image after normalisation"),
      float_spec("brightness", 0,
                 "b: colours are multiplied by max(0, 1 − b) to 1 + b, as in torchvision's ColorJitter"),
      float_spec("contrast", 0, "c: the distance from mid-grey is multiplied by max(0, 1 − c) to 1 + c"),
      float_spec("saturation", 0, "s: the distance from the pixel's own grey is multiplied by max(0, 1 − s) to 1 + s"),
      float_spec("hue", 0, "h, up to 0.5: hues turn by −h to h of a turn about the grey axis of YIQ"),
      float_spec(
          "grey", 0,
          "the share of images without colour; brightness, contrast, saturation, hue and grey are applied in this "
          "order as one matrix, and only its result is kept within black and white"),
      float_spec("erase", 0,
                 "the share of images of which a rectangle becomes zeros after normalisation, as torchvision's "
                 "RandomErasing with value 0"),
      floats_spec("erase_area", {0.02, 0.33}, "[least, most] of that rectangle's share of the output"),
      floats_spec("erase_ratio", {0.3, 3.3}, "[least, most] of that rectangle's height over its width, log-uniform"),
      floats_spec("mean", {}, "of each channel, for pixels in 0 to 1; default 0"),
      floats_spec("std", {}, "standard deviation of each channel; default 1"),
      int_spec("random", 1, "0: the crop is the middle, and nothing else is done; validation sets it")};
}

}  // namespace

void register_data_augment(OpRegistry& registry) {
  registry.add(
      {.domain = "arbalest",
       .name = "Augment",
       .doc =
           "(image / 255 − mean) / std, padded with zeros and cropped at random; at random scaled parts of the image, "
           "rotated, mirrored, recoloured and partly erased",
       .inputs = {{.name = "image"}},
       .outputs = {{.name = "Y", .lowered = true}},
       .attributes = attributes(),
       .random = true,
       .layout = Layout::ChannelsLast,
       .infer = infer_augment,
       .for_inference = augment_for_inference,
       .cost =
           [](const Graph& graph, const Node& node) {
             const bool places =
                 Augmentation(
                     {.node = node, .inputs = {input_type(graph, node, 0)}, .outputs = {output_type(graph, node, 0)}})
                     .places_only();
             return elementwise_cost(places ? 2 : 20)(graph, node);
           },
       .samples = all_samples,
       .cpu =
           [](const KernelRequest& request) {
             return dispatch_floating(request.outputs[0].dtype, [&](auto t) { return augment_cpu(request, t); });
           }});
}

}  // namespace arbalest
