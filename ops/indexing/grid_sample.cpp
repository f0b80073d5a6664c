// SPDX-License-Identifier: Apache-2.0

// GridSample, ONNX's: elements of X at places that a grid names, between those that there are; and its gradients.

#include "ops/indexing/grid_sample.h"

#include <fmt/format.h>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/shape/copy.h"

namespace arbalest {
namespace {

constexpr int64_t kChannelsOfThread = 16;  // whose gradients a thread adds up, one sample's

GridSampling::Strides strides_of(const TensorType& type, int64_t channels, int64_t pixels) {
  if (type.layout == Layout::ChannelsLast) return {1, channels};
  return {pixels, 1};
}

int64_t pixels_after_channels(const Shape& shape) {
  return element_count({shape.begin() + 2, shape.end()});
}

GridRule grid_rule(const Node& node) {
  const std::string mode = string_attribute(node, "mode"), padding = string_attribute(node, "padding_mode");
  return {mode == "nearest"         ? Between::Nearest
          : mode.ends_with("cubic") ? Between::Cubic
                                    : Between::Linear,
          padding == "border"       ? Beyond::Border
          : padding == "reflection" ? Beyond::Reflection
                                    : Beyond::Zeros,
          flag_attribute(node, "align_corners")};
}

// Y's type, of X's element type.
TensorType sampled_type(const InferContext& context, const TensorType& x, size_t grid_input) {
  const TensorType& grid = context.input(grid_input);
  const auto axes = int64_t(x.shape.size()) - 2;
  if (axes < 2 || axes > 3) {
    context.fail(fmt::format("X is {}; expected images or volumes, (samples, channels, …)", to_string(x)));
  }
  if (element_count({x.shape.begin() + 2, x.shape.end()}) < 1) {
    context.fail(fmt::format("X is {}: there is nothing to sample", to_string(x)));
  }
  const bool fits = grid.shape.size() == x.shape.size() && grid.shape[0] == x.shape[0] && grid.shape.back() == axes &&
                    grid.dtype == master_type(x.dtype);
  if (!fits) {
    context.fail(fmt::format("{} is {}; expected {} numbers in {} for each place of each of the {} samples of X, {}",
                             input_name(context, grid_input), to_string(grid), axes, name_of(master_type(x.dtype)),
                             x.shape[0], to_string(x)));
  }
  if (grid_rule(context.node()).between == Between::Cubic && axes != 2) {
    context.fail(fmt::format("attribute 'mode' is cubic, and X is {}; expected images", to_string(x)));
  }
  Shape shape = {x.shape[0], x.shape[1]};
  shape.insert(shape.end(), grid.shape.begin() + 1, grid.shape.end() - 1);
  return TensorType{x.dtype, shape}.in(x.layout);
}

void infer_sample(InferContext& context) {
  context.set_output(0, sampled_type(context, floating_input(context, GridSampleInput::X), GridSampleInput::Grid));
}

void infer_sample_gradient(InferContext& context) {
  const TensorType& dy = floating_input(context, GridSampleGradInput::dY);
  const TensorType x = stated_type(context.node(), master_type(dy.dtype));
  expect_input(context, GridSampleGradInput::dY, {dy.dtype, sampled_type(context, x, GridSampleGradInput::Grid).shape},
               "what 'shape' is sampled to");
  context.set_output(0, x);
}

void infer_grid_gradient(InferContext& context) {
  const TensorType& dy = floating_input(context, GridSampleGridGradInput::dY);
  expect_input(
      context, GridSampleGridGradInput::dY,
      {dy.dtype, sampled_type(context, context.input(GridSampleGridGradInput::X), GridSampleGridGradInput::Grid).shape},
      "what 'X' is sampled to");
  context.set_output(0, context.input(GridSampleGridGradInput::Grid));
}

void grad_sample(GradContext& c) {
  const ValueId dy = c.output_gradient(0), x = c.input(GridSampleInput::X), grid = c.input(GridSampleInput::Grid);
  Attributes attributes = c.node().attributes;
  if (c.needs_gradient(GridSampleInput::Grid)) {
    c.set_input_gradient(GridSampleInput::Grid,
                         c.add("arbalest.GridSampleGridGrad", "grad_grid", {dy, x, grid}, 1, attributes)[0]);
  }
  if (!c.needs_gradient(GridSampleInput::X)) return;
  set_type(attributes, c.type(x));
  c.set_input_gradient(GridSampleInput::X,
                       c.add("arbalest.GridSampleGrad", "grad_input", {dy, grid}, 1, attributes)[0]);
}

std::unique_ptr<Kernel> sample_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using W = Wide<T>;
  const GridSampling s(request.node, request.inputs[GridSampleInput::X], request.inputs[GridSampleInput::Grid],
                       request.outputs[0]);
  return make_kernel([s](const KernelContext& context) {
    const T* x = input<T>(context, GridSampleInput::X);
    const W* grid = input<W>(context, GridSampleInput::Grid);
    T* y = output<T>(context, 0);
    parallel_for(s.samples * s.places, s.channels * 16, [=, &s](int64_t begin, int64_t end) {
      std::vector<W> sums(size_t(s.channels), W(0));
      for (int64_t i = begin; i < end; ++i) {
        const int64_t sample = i / s.places, place = i % s.places;
        const T* image = x + sample * s.channels * s.pixels;
        T* to = y + sample * s.channels * s.places + place * s.y.pixel;
        std::fill(sums.begin(), sums.end(), W(0));
        SampledPlace<W>(s, grid, sample, place).for_each(s, [&](int64_t pixel, W weight, const int*) {
          const T* from = image + pixel * s.x.pixel;
          for (int64_t c = 0; c < s.channels; ++c) sums[size_t(c)] += weight * widen(from[c * s.x.channel]);
        });
        for (int64_t c = 0; c < s.channels; ++c) to[c * s.y.channel] = narrow<T>(sums[size_t(c)]);
      }
    });
  });
}

std::unique_ptr<Kernel> sample_gradient_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using W = Wide<T>;
  const GridSampling s(request.node, request.outputs[0], request.inputs[GridSampleGradInput::Grid],
                       request.inputs[GridSampleGradInput::dY]);
  return make_kernel([s](const KernelContext& context) {
    const T* dy = input<T>(context, GridSampleGradInput::dY);
    const W* grid = input<W>(context, GridSampleGradInput::Grid);
    W* dx = output<W>(context, 0);
    std::fill_n(dx, s.samples * s.channels * s.pixels, W(0));
    const int64_t parts = (s.channels + kChannelsOfThread - 1) / kChannelsOfThread;
    parallel_for(s.samples * parts, s.places * kChannelsOfThread * 8, [=, &s](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t sample = i / parts, first = i % parts * kChannelsOfThread;
        const int64_t past = std::min(s.channels, first + kChannelsOfThread);
        W* image = dx + sample * s.channels * s.pixels;
        for (int64_t place = 0; place < s.places; ++place) {
          const T* from = dy + sample * s.channels * s.places + place * s.y.pixel;
          SampledPlace<W>(s, grid, sample, place).for_each(s, [&](int64_t pixel, W weight, const int*) {
            W* to = image + pixel * s.x.pixel;
            for (int64_t c = first; c < past; ++c) to[c * s.x.channel] += weight * widen(from[c * s.y.channel]);
          });
        }
      }
    });
  });
}

std::unique_ptr<Kernel> grid_gradient_cpu(const KernelRequest& request, auto element) {
  using T = decltype(element);
  using W = Wide<T>;
  const GridSampling s(request.node, request.inputs[GridSampleGridGradInput::X],
                       request.inputs[GridSampleGridGradInput::Grid], request.inputs[GridSampleGridGradInput::dY]);
  return make_kernel([s](const KernelContext& context) {
    const T* dy = input<T>(context, GridSampleGridGradInput::dY);
    const T* x = input<T>(context, GridSampleGridGradInput::X);
    const W* grid = input<W>(context, GridSampleGridGradInput::Grid);
    W* dgrid = output<W>(context, 0);
    parallel_for(s.samples * s.places, s.channels * 16, [=, &s](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t sample = i / s.places, place = i % s.places;
        const T* image = x + sample * s.channels * s.pixels;
        const T* from = dy + sample * s.channels * s.places + place * s.y.pixel;
        W sums[GridSampling::kMostAxes] = {};
        const SampledPlace<W> sampled(s, grid, sample, place);
        sampled.for_each(s, [&](int64_t pixel, W, const int* tap) {
          const T* at = image + pixel * s.x.pixel;
          const W product = sum_in_lanes<W>(
              s.channels, [&](int64_t c) { return widen(at[c * s.x.channel]) * widen(from[c * s.y.channel]); });
          for (int axis = 0; axis < s.axes; ++axis) sums[axis] += sampled.slope(tap, axis) * product;
        });
        for (int axis = 0; axis < s.axes; ++axis) dgrid[s.grid_at(sample, place, axis)] = sums[axis];
      }
    });
  });
}

struct GridCase {
  const char *name, *mode, *padding;
  Shape x, places;
  int64_t corners = 0;
  double reach = 0.9;  // coordinates are drawn within
};
const GridCase kGridCases[] = {
    {"linear", "linear", "zeros", {2, 3, 5, 4}, {3, 6}},
    {"linear, far out", "linear", "zeros", {1, 2, 4, 3}, {5, 4}, 0, 1.9},
    {"linear, border, corners", "bilinear", "border", {2, 5, 4, 6}, {4, 3}, 1, 1.7},
    {"linear, reflection", "linear", "reflection", {1, 20, 3, 4}, {3, 5}, 0, 2.6},
    {"linear, reflection, corners", "linear", "reflection", {1, 2, 3, 4}, {3, 5}, 1, 2.6},
    {"nearest", "nearest", "border", {2, 3, 6, 5}, {4, 4}, 0, 1.3},
    {"cubic", "cubic", "zeros", {1, 3, 6, 5}, {4, 3}, 0, 1.2},
    {"cubic, reflection, corners", "bicubic", "reflection", {2, 2, 5, 6}, {3, 3}, 1, 1.4},
    {"cubic, border", "cubic", "border", {1, 2, 4, 4}, {3, 3}, 0, 1.5},
    {"volume", "linear", "zeros", {2, 3, 4, 3, 5}, {2, 3, 4}, 0, 1.1},
    {"one pixel", "linear", "reflection", {1, 1, 1, 1}, {2, 2}, 1},
};

enum class GridInput : uint8_t { X, Dy, Both };

std::vector<Sample> grid_samples(GridInput reads) {
  std::vector<Sample> samples;
  for (const GridCase& c : kGridCases) {
    for (const Layout layout : {Layout::RowMajor, Layout::ChannelsLast}) {
      const TensorType x = TensorType{DataType::Float32, c.x}.in(layout);
      Shape places = c.places, sampled = c.places;
      places.insert(places.begin(), c.x[0]);
      places.push_back(int64_t(c.x.size()) - 2);
      sampled.insert(sampled.begin(), c.x.begin(), c.x.begin() + 2);
      const Sample::Input dy = {.type = TensorType{DataType::Float32, sampled}.in(layout)};
      const bool kinks = c.mode == std::string("nearest");  // no gradient, where finite differences may meet a jump
      const Sample::Input grid = {.type = TensorType{DataType::Float32, places}.in(layout),
                                  .low = -c.reach,
                                  .high = c.reach,
                                  .differentiable = reads == GridInput::X && !kinks};
      Sample sample{.name = fmt::format("{}, {}", c.name, name_of(layout)),
                    .inputs = {grid},
                    .attributes = {{"mode", c.mode}, {"padding_mode", c.padding}, {"align_corners", c.corners}},
                    .tolerance = 1e-4};
      if (reads != GridInput::Dy) sample.inputs.insert(sample.inputs.begin(), {.type = x});
      if (reads != GridInput::X) sample.inputs.insert(sample.inputs.begin(), dy);
      if (reads == GridInput::Dy) set_type(sample.attributes, x);
      samples.push_back(std::move(sample));
    }
  }
  return samples;
}

std::vector<AttributeSpec> grid_specs() {
  AttributeSpec mode = string_spec("mode", "linear", "how a place is made of elements around it");
  mode.choices = {"linear", "nearest", "cubic", "bilinear", "bicubic"};
  AttributeSpec padding = string_spec("padding_mode", "zeros", "what lies outside of X");
  padding.choices = {"zeros", "border", "reflection"};
  return {std::move(mode), std::move(padding),
          int_spec("align_corners", 0, "1: −1 and 1 are the centres of the outer elements, 0: their outer edges")};
}

}  // namespace

GridSampling::GridSampling(const Node& node, const TensorType& x_type, const TensorType& grid, const TensorType& y_type)
    : rule(grid_rule(node)),
      axes(int(x_type.shape.size()) - 2),
      samples(x_type.shape[0]),
      channels(x_type.shape[1]),
      pixels(pixels_after_channels(x_type.shape)),
      places(pixels_after_channels(y_type.shape)),
      first(std::max<int64_t>(1, grid.shape[1])),
      grid_turned(grid.layout == Layout::ChannelsLast),
      x(strides_of(x_type, channels, pixels)),
      y(strides_of(y_type, channels, places)) {
  for (int axis = 0; axis < axes; ++axis) extent[axis] = x_type.shape[size_t(2 + axis)];
}

void register_indexing_grid_sample(OpRegistry& registry) {
  registry.add({.domain = "",
                .name = "GridSample",
                .doc = "X at the places of the grid, −1 to 1 along each axis, the innermost axis first",
                .inputs = {{.name = "X", .lowered = true}, {.name = "grid"}},
                .outputs = {{.name = "Y", .lowered = true}},
                .attributes = grid_specs(),
                .layout = std::nullopt,
                .infer = infer_sample,
                .grad = grad_sample,
                .cost = elementwise_cost(8),
                .samples = [] { return grid_samples(GridInput::X); },
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return sample_cpu(r, t); })});
  std::vector<AttributeSpec> attributes = grid_specs();
  for (AttributeSpec& spec : type_specs()) attributes.push_back(std::move(spec));
  registry.add({.domain = "arbalest",
                .name = "GridSampleGrad",
                .doc = "the gradient of GridSample's X: for each element the sum of dY wherever it was sampled",
                .inputs = {{.name = "dY", .lowered = true}, {.name = "grid"}},
                .outputs = {{.name = "dX"}},
                .attributes = std::move(attributes),
                .internal = true,
                .layout = std::nullopt,
                .infer = infer_sample_gradient,
                .cost = elementwise_cost(8),
                .samples = [] { return grid_samples(GridInput::Dy); },
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return sample_gradient_cpu(r, t); })});
  registry.add({.domain = "arbalest",
                .name = "GridSampleGridGrad",
                .doc = "the gradient of GridSample's grid",
                .inputs = {{.name = "dY", .lowered = true}, {.name = "X", .lowered = true}, {.name = "grid"}},
                .outputs = {{.name = "dgrid"}},
                .attributes = grid_specs(),
                .internal = true,
                .layout = std::nullopt,
                .infer = infer_grid_gradient,
                .cost = elementwise_cost(8),
                .samples = [] { return grid_samples(GridInput::Both); },
                .cpu = floating_kernel([](const KernelRequest& r, auto t) { return grid_gradient_cpu(r, t); })});
}

}  // namespace arbalest
