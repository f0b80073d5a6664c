// SPDX-License-Identifier: Apache-2.0

// Resize and Upsample: images, or any tensors, with more or fewer elements along axes; and their gradient.

#include "ops/shape/resize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "graph/constants.h"
#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/shape/copy.h"

namespace arbalest {
namespace {

using Floats = std::vector<double>;
using Ints = std::vector<int64_t>;

constexpr int64_t kMost = int64_t{1} << 31;  // extents and factors are below it, so that their product is an int64

bool positive(double factor) {
  return factor > 0 && factor < double(kMost);
}

// `node`: with the constant operands in its attributes.
void infer_from(InferContext& context, const Node& node) {
  check_rank(context);
  const TensorType& x = floating_input(context, 0);
  const size_t rank = x.shape.size();
  const bool newer = node.op->attribute_spec("roi") != nullptr;
  const Ints axes = newer ? ints_attribute(node, "axes") : Ints();
  const size_t count = axes.empty() ? rank : axes.size();
  const auto check = [&](const char* name, size_t given, size_t expected) {
    if (given == 0 || given == expected) return;
    context.fail(fmt::format("'{}' has {} numbers; expected {} for {} axes", name, given, expected, count));
  };
  const Floats scales = floats_attribute(node, "scales");
  const Floats region = newer ? floats_attribute(node, "roi") : Floats();
  const Ints sizes = newer ? ints_attribute(node, "sizes") : Ints();
  const bool old = newer && scales.empty() && sizes.empty();  // opset 10: scales in the place of the region
  check("scales", scales.size(), count);
  check("sizes", sizes.size(), count);
  check("roi", region.size(), old ? count : 2 * count);
  if ((scales.empty() && sizes.empty() && region.empty()) || (!scales.empty() && !sizes.empty())) {
    context.fail("expected either 'scales' or 'sizes'");
  }
  for (const double factor : old ? region : scales) {
    if (!positive(factor)) context.fail(fmt::format("'scales' holds {}; expected numbers above 0", factor));
  }
  for (const int64_t size : sizes) {
    if (size <= 0 || size >= kMost) context.fail(fmt::format("'sizes' holds {}; expected extents above 0", size));
  }
  for (const double bound : old ? Floats() : region) {
    if (!(std::abs(bound) < double(kMost)))
      context.fail(fmt::format("'roi' holds {}; expected parts of an axis", bound));
  }
  if (newer && !axes.empty()) named_axes(context, int64_t(rank));
  if (std::any_of(x.shape.begin(), x.shape.end(), [](int64_t extent) { return extent == 0 || extent >= kMost; })) {
    context.fail(fmt::format("{} is {}; expected extents of 1 to 2^31 - 1", input_name(context, 0), to_string(x)));
  }
  context.set_output(0, TensorType{x.dtype, Resizing(node, x.shape).shape}.in(x.layout));
}

void infer_resize(InferContext& context) {
  Node node = context.node();
  take_operands(context.graph(), node);
  infer_from(context, node);
}

void grad_resize(GradContext& c) {
  Attributes attributes = c.node().attributes;
  set_type(attributes, c.type(c.input(0)));
  const std::string op = "arbalest." + c.node().op->name + "Grad";
  c.add_input_gradient(op, {}, attributes);
}

void infer_resize_gradient(InferContext& context) {
  const TensorType& dy = floating_input(context, 0);
  const TensorType dx = stated_type(context.node(), dy.dtype);
  expect_input(context, 0, {dy.dtype, Resizing(context.node(), dx.shape).shape}, "what 'shape' is resized to");
  context.set_output(0, dx);
}

// The terms of one place of the result, over all axes: a product of one of each axis's.
struct ResizeTerms {
  const Resampling& r;
  int64_t begin[Resampling::kMaxRank], number[Resampling::kMaxRank];
  int64_t base = 0, total = 1;

  // `place`: along each axis but the last `inner` ones.
  ResizeTerms(const Resampling& resampling, int64_t place, int axes) : r(resampling) {
    for (int axis = axes - 1; axis >= 0; --axis) {
      const int64_t i = place % r.extent[axis];
      place /= r.extent[axis];
      if (r.terms[axis] < 0) {
        base += i * r.stride[axis];
        begin[axis] = 0, number[axis] = 1;
        continue;
      }
      const AxisTerms& list = r.lists[size_t(r.terms[axis])];
      begin[axis] = list.start[size_t(i)];
      number[axis] = list.start[size_t(i) + 1] - begin[axis];
      total *= number[axis];
    }
  }
  // f(offset in the source, weight) for each.
  template <typename F>
  void for_each(int axes, const F& f) const {
    for (int64_t t = 0; t < total; ++t) {
      int64_t rest = t, offset = base;
      double weight = 1;
      for (int axis = axes - 1; axis >= 0; --axis) {
        if (r.terms[axis] < 0) continue;
        const size_t term = size_t(begin[axis] + rest % number[axis]);
        rest /= number[axis];
        offset += r.lists[size_t(r.terms[axis])].index[term];
        weight *= r.lists[size_t(r.terms[axis])].weight[term];
      }
      f(offset, weight);
    }
  }
};

// Source rows are added up first, and then elements of the sum along the innermost axis, whose elements are neighbours.
// `width`: of a source row.
template <typename T>
void resample_rows(const Resampling& r, int64_t width, const T* x, T* y) {
  using W = Wide<T>;
  const int axes = r.rank - 1;
  const AxisTerms& last = r.lists[size_t(r.terms[axes])];
  const int64_t inner = r.extent[axes];
  parallel_for(r.count / inner, inner * 8, [=, &r, &last](int64_t begin, int64_t end) {
    std::vector<W> row(static_cast<size_t>(width));
    for (int64_t place = begin; place < end; ++place) {
      const ResizeTerms terms(r, place, axes);
      std::fill(row.begin(), row.end(), W(0));
      terms.for_each(axes, [&](int64_t offset, double weight) {
        for (int64_t i = 0; i < width; ++i) row[size_t(i)] += W(weight) * widen(x[offset + i]);
      });
      for (int64_t i = 0; i < inner; ++i) {
        const auto first = size_t(last.start[size_t(i)]), past = size_t(last.start[size_t(i) + 1]);
        W sum = terms.total == 0 || first == past ? W(r.outside) : W(0);
        for (size_t t = first; t < past && terms.total > 0; ++t) sum += W(last.weight[t]) * row[size_t(last.index[t])];
        y[place * inner + i] = narrow<T>(sum);
      }
    }
  });
}

// Elements along the innermost axis share their terms if that axis stays as it is.
template <typename T>
void resample(const Resampling& r, const T* x, T* y) {
  using W = Wide<T>;
  if (r.rank > 1 && r.terms[r.rank - 1] >= 0 && r.stride[r.rank - 1] == 1) {
    constexpr int64_t kWider = 4;  // source rows than this many result's have mostly elements that nothing reads
    const Ints& places = r.lists[size_t(r.terms[r.rank - 1])].index;
    const int64_t width = places.empty() ? 0 : *std::max_element(places.begin(), places.end()) + 1;
    if (width <= kWider * r.extent[r.rank - 1]) return resample_rows(r, width, x, y);
  }
  constexpr int64_t kRun = 64;
  const bool shared = r.rank > 0 && r.terms[r.rank - 1] < 0;
  const int axes = shared ? r.rank - 1 : r.rank;
  const int64_t inner = shared ? r.extent[r.rank - 1] : 1, step = shared ? r.stride[r.rank - 1] : 0;
  parallel_for(r.count / inner, inner * 8, [=, &r](int64_t begin, int64_t end) {
    for (int64_t place = begin; place < end; ++place) {
      const ResizeTerms terms(r, place, axes);
      for (int64_t first = 0; first < inner; first += kRun) {
        const int64_t run = std::min(kRun, inner - first);
        W sums[kRun];
        std::fill_n(sums, run, terms.total == 0 ? W(r.outside) : W(0));
        terms.for_each(axes, [&](int64_t offset, double weight) {
          const T* from = x + offset + first * step;
          for (int64_t i = 0; i < run; ++i) sums[i] += W(weight) * widen(from[i * step]);
        });
        for (int64_t i = 0; i < run; ++i) y[place * inner + first + i] = narrow<T>(sums[i]);
      }
    }
  });
}

KernelFactory kernel(bool backward) {
  return floating_kernel([backward](const KernelRequest& request, auto element) {
    using T = decltype(element);
    const TensorType &from = request.inputs[0], &to = request.outputs[0];
    return make_kernel(
        [r = Resampling(request.node, backward ? to : from, backward ? from : to, backward)](const KernelContext& c) {
          if (r.count > 0) resample(r, input<T>(c, 0), output<T>(c, 0));
        });
  });
}

std::vector<AttributeSpec> resize_specs() {
  const auto choice = [](const char* name, const char* doc, std::vector<std::string> choices) {
    AttributeSpec spec = string_spec(name, choices[0], doc);
    spec.choices = std::move(choices);
    return spec;
  };
  return {
      floats_spec("roi", {}, "the region of tf_crop_and_resize: where it begins along each axis, then where it ends"),
      floats_spec("scales", {}, "a factor for each axis"),
      ints_spec("sizes", {}, "instead: the extents of the result"),
      choice("mode", "how elements are made of those around them", {"nearest", "linear", "cubic"}),
      choice("coordinate_transformation_mode", "where an element of the result lies in X",
             {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
              "tf_half_pixel_for_nn", "tf_crop_and_resize"}),
      choice("nearest_mode", "how its place is rounded", {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"}),
      choice("keep_aspect_ratio_policy", "what sizes are", {"stretch", "not_larger", "not_smaller"}),
      ints_spec("axes", {}, "those of roi, scales and sizes; not given: all"),
      int_spec("antialias", 0, "1: filters are as wide as what is made smaller"),
      int_spec("exclude_outside", 0, "1: elements outside of X weigh nothing"),
      float_spec("cubic_coeff_a", -0.75, "of mode cubic"),
      float_spec("extrapolation_value", 0, "what is outside of X, for tf_crop_and_resize")};
}

std::vector<AttributeSpec> upsample_specs() {
  AttributeSpec mode = string_spec("mode", "nearest", "how elements are made of those around them");
  mode.choices = {"nearest", "linear"};
  return {floats_spec("scales", {}, "a factor for each axis"), std::move(mode)};
}

struct ResizeCase {
  std::string name;
  Shape x;
  Attributes attributes;
};

std::vector<ResizeCase> resize_cases(bool resize) {
  const Floats twice{1, 1, 2, 2}, wider{1, 1, 1.5, 3};
  std::vector<ResizeCase> cases = {{"nearest", {2, 8, 3, 4}, {{"scales", twice}}},
                                   {"linear", {2, 3, 4, 5}, {{"scales", wider}, {"mode", "linear"}}}};
  if (!resize) return cases;
  const ResizeCase more[] = {
      {"nearest to a size", {1, 3, 5, 7}, {{"sizes", Ints{1, 3, 8, 4}}, {"nearest_mode", "ceil"}}},
      {"linear, align_corners",
       {1, 4, 3, 5},
       {{"sizes", Ints{7, 8}},
        {"axes", Ints{2, 3}},
        {"mode", "linear"},
        {"coordinate_transformation_mode", "align_corners"}}},
      {"linear, smaller, antialiased",
       {1, 3, 9, 8},
       {{"scales", Floats{1, 1, 0.4, 0.5}}, {"mode", "linear"}, {"antialias", int64_t{1}}}},
      {"cubic", {1, 2, 4, 5}, {{"scales", Floats{1, 1, 1.7, 2}}, {"mode", "cubic"}, {"exclude_outside", int64_t{1}}}},
      {"rows of which little is left", {1, 2, 3, 40}, {{"scales", Floats{1, 1, 1, 0.1}}, {"mode", "linear"}}},
      {"vectors", {6}, {{"scales", Floats{2.5}}, {"mode", "linear"}, {"coordinate_transformation_mode", "asymmetric"}}},
      {"volumes", {1, 2, 3, 4, 5}, {{"scales", Floats{1, 1, 2, 1.5, 2.4}}, {"mode", "linear"}}},
      {"samples, channels and columns", {2, 3, 2, 5}, {{"scales", Floats{1.5, 2, 1, 1.5}}, {"mode", "linear"}}},
      {"packs of channels, cubic", {1, 16, 5, 4}, {{"scales", Floats{1, 1, 1.6, 0.5}}, {"mode", "cubic"}}},
      {"packs of columns", {1, 3, 5, 16}, {{"scales", Floats{1, 1, 1.6, 1.5}}, {"mode", "linear"}}},
      {"many rows", {4, 4, 40, 6}, {{"scales", Floats{1, 1, 2, 3}}, {"mode", "linear"}}},
      {"rows of several blocks", {1, 1, 2, 7001}, {{"scales", Floats{1, 1, 1.5, 1.2}}, {"mode", "linear"}}},
      {"packs of rows of several blocks", {1, 1, 2, 6800}, {{"scales", Floats{1, 1, 1, 2}}}},
      {"one element becomes many", {2, 16, 1, 1}, {{"sizes", Ints{2, 16, 23, 25}}, {"mode", "linear"}}},
      {"one element of odd channels becomes many", {1, 21, 1, 1}, {{"sizes", Ints{1, 21, 9, 8}}, {"mode", "linear"}}},
      {"many elements become one",
       {1, 20, 23, 25},
       {{"sizes", Ints{1, 20, 1, 1}}, {"mode", "linear"}, {"antialias", int64_t{1}}}},
      {"a region",
       {1, 1, 4, 4},
       {{"roi", Floats{0, 0, 0.4, 0.6, 1, 1, 1.2, 1.7}},
        {"sizes", Ints{1, 1, 3, 3}},
        {"mode", "linear"},
        {"coordinate_transformation_mode", "tf_crop_and_resize"},
        {"extrapolation_value", 10.0}}}};
  cases.insert(cases.end(), std::begin(more), std::end(more));
  return cases;
}

std::vector<Sample> resize_samples(const OpRegistry& registry, const std::string& name, bool backward) {
  std::vector<Sample> samples;
  for (const ResizeCase& c : resize_cases(name == "Resize")) {
    for (const Layout layout : {Layout::RowMajor, Layout::ChannelsLast}) {
      const TensorType x = TensorType{DataType::Float32, c.x}.in(layout);
      if (x.layout != layout) continue;
      Sample sample{.name = fmt::format("{}, {}", c.name, name_of(layout)),
                    .inputs = {{.type = x}},
                    .attributes = c.attributes,
                    .tolerance = 1e-5};
      if (backward) {
        const Node node{.op = &registry.get(name), .name = {}, .attributes = c.attributes};
        sample.inputs[0].type.shape = Resizing(node, c.x).shape;
        set_type(sample.attributes, x);
      }
      samples.push_back(std::move(sample));
    }
  }
  return samples;
}

void add_resize(OpRegistry& registry, const std::string& name, std::vector<AttributeSpec> attributes,
                std::initializer_list<const char*> constants) {
  Op op{.domain = "",
        .name = name,
        .doc = "X with more or fewer elements along its axes",
        .inputs = {{.name = "X", .lowered = true}},
        .outputs = {{.name = "Y", .lowered = true}},
        .attributes = attributes,
        .layout = std::nullopt,
        .infer = infer_resize,
        .grad = grad_resize,
        .cost = elementwise_cost(8),
        .samples = [name, &registry] { return resize_samples(registry, name, false); },
        .cpu = kernel(false)};
  for (const char* constant : constants) {
    op.inputs.push_back({.name = constant, .arity = OperandSpec::Optional, .constant = true});
  }
  registry.add(std::move(op));
  for (AttributeSpec& spec : type_specs()) attributes.push_back(std::move(spec));
  registry.add({.domain = "arbalest",
                .name = name + "Grad",
                .doc = "the gradient of " + name,
                .inputs = {{.name = "dY", .lowered = true}},
                .outputs = {{.name = "dX", .lowered = true}},
                .attributes = std::move(attributes),
                .internal = true,
                .layout = std::nullopt,
                .infer = infer_resize_gradient,
                .cost = elementwise_cost(8),
                .samples = [name, &registry] { return resize_samples(registry, name, true); },
                .cpu = kernel(true)});
}

}  // namespace

void register_shape_resize(OpRegistry& registry) {
  add_resize(registry, "Resize", resize_specs(), {"roi", "scales", "sizes"});
  add_resize(registry, "Upsample", upsample_specs(), {"scales"});
}

}  // namespace arbalest
