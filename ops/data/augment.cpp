// Augment: uint8 images to normalised floats, with random crops of the padded image and mirroring.

#include <fmt/format.h>

#include "graph/random.h"
#include "ops/cpu.h"
#include "ops/definition.h"

namespace arbalest {
namespace {

// [height, width] of the output.
std::vector<int64_t> crop_of(const Node& node, const Shape& image) {
  const std::vector<int64_t> crop = ints_attribute(node, "crop");
  return crop.empty() ? std::vector<int64_t>{image[2], image[3]} : crop;
}

// Mean or deviation of each channel; one number serves all.
std::vector<double> per_channel(const Node& node, std::string_view name, int64_t channels, double fallback) {
  std::vector<double> values = floats_attribute(node, name);
  if (values.empty()) values.push_back(fallback);
  if (values.size() == 1) values.resize(size_t(channels), values[0]);
  if (int64_t(values.size()) != channels) {
    fail(node, fmt::format("attribute '{}' has {} numbers; expected 1 or one for each of {} channels", name,
                           values.size(), channels));
  }
  return values;
}

void infer_augment(InferContext& context) {
  const Node& node = context.node();
  const TensorType& image = context.input(0);
  if (image.dtype != DataType::Uint8 || image.shape.size() != 4) {
    context.fail(fmt::format("input 'image' is {}; expected uint8[N,C,H,W]", to_string(image)));
  }
  const int64_t pad = int_attribute_from(node, "pad", 0);
  flag_attribute(node, "flip");
  flag_attribute(node, "random");
  const std::vector<int64_t> crop = crop_of(node, image.shape);
  if (crop.size() != 2) context.fail(fmt::format("attribute 'crop' has {} numbers; expected 2", crop.size()));
  for (size_t axis = 0; axis < 2; ++axis) {
    const int64_t padded = image.shape[axis + 2] + 2 * pad;
    if (crop[axis] < 1 || crop[axis] > padded) {
      context.fail(fmt::format("attribute 'crop' is {}; expected 1 to {} for the padded {} of input 'image', {}",
                               to_string(crop, '[', ']'), padded, axis == 0 ? "height" : "width", to_string(image)));
    }
  }
  per_channel(node, "mean", image.shape[1], 0);
  for (const double deviation : per_channel(node, "std", image.shape[1], 1)) {
    if (!(deviation > 0)) context.fail(fmt::format("attribute 'std' holds {}; expected more than 0", deviation));
  }
  context.set_output(0, {DataType::Float32, {image.shape[0], image.shape[1], crop[0], crop[1]}});
}

// How one sample's crop lies in the image: output (row, column) is image (row + top, column + left), or where it is
// mirrored (row + top, left + width − 1 − column).
struct Placement {
  int64_t top, left;
  bool mirrored;
};

struct Augmentation {
  int64_t batch, channels, height, width, crop_height, crop_width, pad;
  bool flip, random;
  uint64_t name_hash;

  explicit Augmentation(const KernelRequest& request) {
    const Shape &image = request.inputs[0].shape, &crop = request.outputs[0].shape;
    batch = image[0], channels = image[1], height = image[2], width = image[3];
    crop_height = crop[2], crop_width = crop[3];
    pad = int_attribute(request.node, "pad");
    flip = int_attribute(request.node, "flip") != 0;
    random = int_attribute(request.node, "random") != 0;
    name_hash = hash_name(request.node.name);
  }

  // A function of the sample's place in the epoch, not of the batch it came in.
  Placement place(const StepScalars& scalars, int64_t sample) const {
    const int64_t rows = 2 * pad + height - crop_height, columns = 2 * pad + width - crop_width;
    if (!random) return {rows / 2 - pad, columns / 2 - pad, false};
    const Random4 draw =
        philox(random_key(scalars.seed, name_hash), scalars.epoch, scalars.position + uint64_t(sample));
    return {int64_t(below(draw.word[0], uint32_t(rows + 1))) - pad,
            int64_t(below(draw.word[1], uint32_t(columns + 1))) - pad, flip && (draw.word[2] & 1) != 0};
  }
};

// One row of the crop: x is the image's row (width · channels), a and b the channels' scale and shift repeated along
// it.
template <typename T>
void augment_row(const Augmentation& size, const Placement& place, const uint8_t* x, const Wide<T>* a, const Wide<T>* b,
                 T* y) {
  const int64_t channels = size.channels, columns = size.crop_width;
  // Columns of the crop, before mirroring, that lie in the image.
  const int64_t first = std::clamp<int64_t>(-place.left, 0, columns);
  const int64_t last = std::clamp<int64_t>(size.width - place.left, first, columns);
  if (place.mirrored) {
    std::fill(y, y + (columns - last) * channels, T(0));
    for (int64_t column = first; column < last; ++column) {
      const uint8_t* from = x + (column + place.left) * channels;
      T* to = y + (columns - 1 - column) * channels;
      for (int64_t c = 0; c < channels; ++c) to[c] = narrow<T>(Wide<T>(from[c]) * a[c] + b[c]);
    }
    std::fill(y + (columns - first) * channels, y + columns * channels, T(0));
    return;
  }
  std::fill(y, y + first * channels, T(0));
  const uint8_t* from = x + (first + place.left) * channels;
  T* to = y + first * channels;
  const int64_t count = (last - first) * channels;
  for (int64_t i = 0; i < count; ++i) to[i] = narrow<T>(Wide<T>(from[i]) * a[i] + b[i]);
  std::fill(y + last * channels, y + columns * channels, T(0));
}

std::unique_ptr<Kernel> augment_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  const Augmentation size(request);
  const std::vector<double> mean = per_channel(request.node, "mean", size.channels, 0);
  const std::vector<double> deviation = per_channel(request.node, "std", size.channels, 1);
  std::vector<Wide<T>> a, b;
  for (int64_t i = 0; i < size.crop_width * size.channels; ++i) {
    const size_t c = size_t(i % size.channels);
    a.push_back(Wide<T>(1 / (255 * deviation[c])));
    b.push_back(Wide<T>(-mean[c] / deviation[c]));
  }
  return make_kernel([size, a = std::move(a), b = std::move(b)](const KernelContext& context) {
    const uint8_t* image = input<uint8_t>(context, 0);
    T* out = output<T>(context, 0);
    const int64_t row = size.width * size.channels, crop_row = size.crop_width * size.channels;
    parallel_for(size.batch, size.crop_height * crop_row, [&, image, out](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const Placement place = size.place(*context.scalars, n);
        for (int64_t h = 0; h < size.crop_height; ++h) {
          const int64_t source = h + place.top;
          T* y = out + (n * size.crop_height + h) * crop_row;
          if (source < 0 || source >= size.height) {
            std::fill(y, y + crop_row, T(0));
          } else {
            augment_row<T>(size, place, image + (n * size.height + source) * row, a.data(), b.data(), y);
          }
        }
      }
    });
  });
}

std::vector<Sample> samples() {
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
      sample("one pixel", {1, 1, 1, 1}, {{"pad", int64_t{1}}, {"flip", int64_t{1}}})};
}

}  // namespace

void register_data_augment(OpRegistry& registry) {
  registry.add(
      {.domain = "arbalest",
       .name = "Augment",
       .doc = "(image / 255 − mean) / std, padded with zeros, cropped at random and mirrored at random",
       .inputs = {{.name = "image"}},
       .outputs = {{.name = "Y", .lowered = true}},
       .attributes = {int_spec("pad", 0, "pixels of zeros on each side, after normalisation"),
                      ints_spec("crop", {}, "[height, width] of the output; default: the image's"),
                      int_spec("flip", 0, "1: half of the images are mirrored"),
                      floats_spec("mean", {}, "of each channel, for pixels in 0 to 1; default 0"),
                      floats_spec("std", {}, "standard deviation of each channel; default 1"),
                      int_spec("random", 1, "0: the crop is centred and nothing is mirrored; validation sets it")},
       .random = true,
       .layout = Layout::ChannelsLast,
       .infer = infer_augment,
       .for_inference = [](Graph& graph,
                           NodeId node) { graph.nodes[size_t(node)].attributes.set("random", int64_t{0}); },
       .cost = elementwise_cost(2),
       .samples = samples,
       .cpu =
           [](const KernelRequest& request) {
             return dispatch_floating(request.outputs[0].dtype, [&](auto t) { return augment_cpu(request, t); });
           }});
}

}  // namespace arbalest
