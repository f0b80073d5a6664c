// SPDX-License-Identifier: Apache-2.0

// MixImages: Mixup and CutMix of a batch's images and labels. It expands into MixPixels and MixLabels, which draw the
// same numbers.

#include <fmt/format.h>

#include <limits>

#include "ops/cpu.h"
#include "ops/data/mixing.h"
#include "ops/definition.h"

namespace arbalest {

Mixing::Mixing(const Node& node, int64_t batch, int64_t height, int64_t width)
    : batch(batch),
      height(int(height)),
      width(int(width)),
      mixup(float_attribute(node, "mixup")),
      cutmix(float_attribute(node, "cutmix")),
      to_cutmix(float_attribute(node, "switch")),
      probability(float_attribute(node, "probability")),
      per_sample(int_attribute(node, "per_sample") != 0),
      name_hash(hash_name(string_attribute(node, "node"))) {}

namespace {

constexpr int64_t kMostMixedExtent = 1 << 20;  // of images

void check_settings(const InferContext& context) {
  const auto check = [&](const char* name, double most) {
    const double number = float_attribute(context.node(), name);
    if (number >= 0 && number <= most) return;
    context.fail(fmt::format("attribute '{}' is {}; expected 0 to {}", name, number, most));
  };
  for (const char* alpha : {"mixup", "cutmix"}) check(alpha, 1000);
  for (const char* share : {"switch", "probability"}) check(share, 1);
  flag_attribute(context.node(), "per_sample");
}

const TensorType& check_image(const InferContext& context) {
  const TensorType& image = floating_input(context, 0, {4});
  for (const size_t axis : {2, 3}) {
    if (image.shape[axis] >= 1 && image.shape[axis] <= kMostMixedExtent) continue;
    context.fail(fmt::format("input 'image' is {}; expected a height and a width of 1 to {}", to_string(image),
                             kMostMixedExtent));
  }
  return image;
}

// Rows of `classes` numbers, one for each label.
TensorType mixed_labels(const InferContext& context, size_t operand, DataType dtype) {
  const TensorType& label = context.input(operand);
  if (label.dtype != DataType::Int32 || label.shape.size() != 1) {
    context.fail(fmt::format("{} is {}; expected int32[N]", input_name(context, operand), to_string(label)));
  }
  return {dtype, {label.shape[0], int_attribute_from(context.node(), "classes", 1)}};
}

void infer_mix_images(InferContext& context) {
  check_settings(context);
  const TensorType& image = check_image(context);
  const TensorType labels = mixed_labels(context, 1, master_type(image.dtype));
  expect_input(context, MixImagesInput::Label, {DataType::Int32, {image.shape[0]}}, "one label an image");
  context.set_output(MixImagesOutput::Mixed, image);
  context.set_output(MixImagesOutput::Rows, labels);
}

void infer_mix_pixels(InferContext& context) {
  check_settings(context);
  context.set_output(0, check_image(context));
}

void infer_mix_labels(InferContext& context) {
  check_settings(context);
  for (const char* extent : {"height", "width"}) int_attribute_from(context.node(), extent, 1);
  context.set_output(0, mixed_labels(context, 0, DataType::Float32));
}

void expand_mix_images(ExpandContext& context) {
  using In = MixImagesInput;
  const Node& node = context.node();
  Attributes attributes = {{"node", node.name}};
  for (const char* name : {"mixup", "cutmix", "switch", "probability"}) {
    attributes.set(name, float_attribute(node, name));
  }
  attributes.set("per_sample", int_attribute(node, "per_sample"));
  const bool mixes = float_attribute(node, "mixup") > 0 || float_attribute(node, "cutmix") > 0;
  const Shape image = context.type(context.input(In::Image)).shape;
  const ValueId pixels = mixes ? context.add("arbalest.MixPixels", "", {context.input(In::Image)}, 1, attributes)[0]
                               : context.add("Identity", "", {context.input(In::Image)}, 1)[0];
  attributes.set("classes", int_attribute(node, "classes"));
  attributes.set("height", image[2]);
  attributes.set("width", image[3]);
  const ValueId labels = context.add("arbalest.MixLabels", "label", {context.input(In::Label)}, 1, attributes)[0];
  context.replace_output(MixImagesOutput::Mixed, pixels);
  if (node.outputs.size() > 1) context.replace_output(MixImagesOutput::Rows, labels);
}

void pixels_for_inference(Graph& graph, NodeId id) {
  graph.nodes[id].op = &graph.op("Identity");
  graph.nodes[id].attributes = {};
}

void labels_for_inference(Graph& graph, NodeId id) {
  for (const char* alpha : {"mixup", "cutmix"}) graph.nodes[id].attributes.set(alpha, 0.0);
}

// y may not be any of the others.
template <typename T>
void mix_row(const T* own, const T* other, Wide<T> share, int64_t count, T* y) {
  const Wide<T> rest = 1 - share;
  for (int64_t i = 0; i < count; ++i) y[i] = narrow<T>(share * widen(own[i]) + rest * widen(other[i]));
}

std::unique_ptr<Kernel> mix_pixels_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  const Shape& shape = request.inputs[0].shape;
  const Mixing mixing(request.node, shape[0], shape[2], shape[3]);
  const int64_t channels = shape[1], size = channels * shape[2] * shape[3];
  return make_kernel([=](const KernelContext& c) {
    parallel_for(mixing.batch, size, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        const Mix mix(mixing, *c.scalars, n);
        const T* own = input<T>(c, 0) + n * size;
        const T* other = input<T>(c, 0) + mixing.partner(n) * size;
        T* y = output<T>(c, 0) + n * size;
        if (!mix.cuts && mix.own < 1) {
          mix_row(own, other, Wide<T>(mix.own), size, y);
          continue;
        }
        std::copy(own, own + size, y);
        for (int row = mix.box.top; row < mix.box.top + mix.box.height; ++row) {
          const int64_t first = (int64_t(row) * mixing.width + mix.box.left) * channels;
          std::copy(other + first, other + first + mix.box.width * channels, y + first);
        }
      }
    });
  });
}

std::unique_ptr<Kernel> mix_labels_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  const Node& node = request.node;
  const int64_t classes = request.outputs[0].shape[1];
  const Mixing mixing(node, request.outputs[0].shape[0], int_attribute(node, "height"), int_attribute(node, "width"));
  return make_kernel([=](const KernelContext& c) {
    const int32_t* label = input<int32_t>(c, 0);
    for (int64_t n = 0; n < mixing.batch; ++n) {
      const Mix mix(mixing, *c.scalars, n);
      const int64_t own = label[n], other = mix.own < 1 ? label[mixing.partner(n)] : own;
      const bool sound = own >= 0 && own < classes && other >= 0 && other < classes;
      T* row = output<T>(c, 0) + n * classes;
      std::fill(row, row + classes, sound ? T(0) : T(std::numeric_limits<float>::quiet_NaN()));
      if (!sound) continue;
      row[own] = T(mix.own);
      if (mix.own < 1) row[other] = T(Wide<T>(row[other]) + Wide<T>(1 - mix.own));
    }
  });
}

Attributes both(double mixup, double cutmix, double probability, bool per_sample) {
  return {{"mixup", mixup},
          {"cutmix", cutmix},
          {"probability", probability},
          {"per_sample", int64_t{per_sample}},
          {"node", "mixed"}};
}

struct MixCase {
  const char* name;
  Shape shape;
  Attributes attributes;
};

std::vector<MixCase> mix_cases() {
  return {{"Mixup", {8, 3, 8, 8}, both(0.2, 0, 1, false)},
          {"Mixup of each sample, odd sizes", {7, 3, 5, 3}, both(0.8, 0, 1, true)},
          {"Mixup of half the samples", {16, 2, 4, 6}, both(3, 0, 0.5, true)},
          {"CutMix", {8, 3, 16, 16}, both(0, 1, 1, false)},
          {"CutMix of each sample, odd sizes", {9, 5, 7, 9}, both(0, 1, 0.8, true)},
          {"either", {16, 3, 12, 8}, both(0.8, 1, 1, true)},
          {"either, larger", {6, 3, 40, 44}, both(0.8, 1, 1, true)},
          {"one sample", {1, 1, 4, 4}, both(0.4, 0.4, 1, false)},
          {"neither", {3, 1, 4, 4}, both(0, 0, 1, false)},
          {"no samples", {0, 3, 4, 4}, both(1, 1, 1, true)}};
}

std::vector<Sample> mixed_pixel_samples() {
  std::vector<Sample> samples;
  for (MixCase& c : mix_cases()) {
    samples.push_back({.name = c.name,
                       .inputs = {{.type = {DataType::Float32, c.shape}, .differentiable = false}},
                       .attributes = std::move(c.attributes),
                       .tolerance = 1e-6,
                       .scalars = {.seed = 7, .epoch = 3, .position = 640}});
  }
  return samples;
}

std::vector<Sample> label_samples() {
  std::vector<Sample> samples;
  for (MixCase& c : mix_cases()) {
    for (const int64_t classes : {1, 10, 300}) {
      Sample sample{.name = fmt::format("{}, {} classes", c.name, classes),
                    .inputs = {{{DataType::Int32, {c.shape[0]}}, 0, double(classes - 1), false}},
                    .attributes = c.attributes,
                    .tolerance = 1e-6,
                    .scalars = {.seed = 7, .epoch = 3, .position = 640}};
      sample.attributes.set("classes", classes);
      sample.attributes.set("height", c.shape[2]);
      sample.attributes.set("width", c.shape[3]);
      samples.push_back(std::move(sample));
    }
  }
  return samples;
}

std::vector<AttributeSpec> settings() {
  return {
      float_spec("mixup", 0, "α: λ is drawn from Beta(α, α), and images become λ · own + (1 − λ) · other; 0: off"),
      float_spec("cutmix", 0,
                 "α: λ is drawn from Beta(α, α), and a box of 1 − λ of the area, cut off at the edges, comes from the "
                 "other image; 0: off"),
      float_spec("switch", 0.5, "the probability of CutMix where both are on"),
      float_spec("probability", 1, "that a batch is mixed, or with `per_sample` a sample"),
      int_spec("per_sample", 0,
               "1: each sample draws λ and box for itself; 0: the batch does for all, as in "
               "torchvision")};
}

AttributeSpec classes_spec() {
  return required_spec("classes", AttributeKind::Int, "how many there are: the length of the rows");
}

std::vector<AttributeSpec> with_settings(std::vector<AttributeSpec> specs) {
  const std::vector<AttributeSpec> more = settings();
  specs.insert(specs.end(), more.begin(), more.end());
  return specs;
}

AttributeSpec node_spec() {
  return required_spec("node", AttributeKind::String, "the name of the MixImages");
}

}  // namespace

void register_data_mix_images(OpRegistry& registry) {
  registry.add({.domain = "arbalest",
                .name = "MixImages",
                .doc = "Mixup and CutMix: in training each image and its label are mixed with those before them in the "
                       "batch, the first with the last; labels become rows for SoftmaxCrossEntropy, of 0 and 1 in "
                       "validation, and metrics read the classes themselves",
                .inputs = {{.name = "image"}, {.name = "label"}},
                .outputs = {{.name = "mixed"}, {.name = "rows"}},
                .attributes = with_settings({classes_spec()}),
                .random = true,
                .layout = std::nullopt,
                .infer = infer_mix_images,
                .expand = expand_mix_images});
  registry.add({.domain = "arbalest",
                .name = "MixPixels",
                .doc = "the images of MixImages",
                .inputs = {{.name = "image", .lowered = true}},
                .outputs = {{.name = "mixed", .lowered = true}},
                .attributes = with_settings({node_spec()}),
                .internal = true,
                .random = true,
                .layout = Layout::ChannelsLast,
                .infer = infer_mix_pixels,
                .for_inference = pixels_for_inference,
                .cost = elementwise_cost(3),
                .samples = mixed_pixel_samples,
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return mix_pixels_cpu(r, t); })});
  registry.add(
      {.domain = "arbalest",
       .name = "MixLabels",
       .doc = "the labels of MixImages",
       .inputs = {{.name = "label"}},
       .outputs = {{.name = "rows"}},
       .attributes =
           with_settings({node_spec(), classes_spec(), required_spec("height", AttributeKind::Int, "of the images"),
                          required_spec("width", AttributeKind::Int, "of the images")}),
       .internal = true,
       .random = true,
       .infer = infer_mix_labels,
       .for_inference = labels_for_inference,
       .cost = elementwise_cost(1),
       .samples = label_samples,
       .cpu = [](const KernelRequest& request) {
         return dispatch_floating(request.outputs[0].dtype, [&](auto t) { return mix_labels_cpu(request, t); });
       }});
}

}  // namespace arbalest
