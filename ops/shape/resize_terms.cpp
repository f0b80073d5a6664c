// Coordinates, filters and terms of Resize, as ONNX defines them.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "graph/graph.h"
#include "graph/op.h"
#include "ops/shape/resize.h"

namespace arbalest {
namespace {

// Upsample, and Resize of opset 10, whose scales are where newer ones have the region, know no other coordinates.
bool is_old(const Node& node) {
  if (!node.op->attribute_spec("roi")) return true;
  const auto given = [&](const char* name) {
    const Attribute* list = node.attributes.find(name);
    return list && *list != Attribute(std::vector<double>()) && *list != Attribute(std::vector<int64_t>());
  };
  return given("roi") && !given("scales") && !given("sizes");
}

std::string text(const Node& node, const char* name, const char* old) {
  return is_old(node) ? old : string_attribute(node, name);
}

double nearest(double at, const std::string& mode) {
  if (mode == "floor") return std::floor(at);
  if (mode == "ceil") return std::ceil(at);
  return mode == "round_prefer_ceil" ? std::floor(at + 0.5) : std::ceil(at - 0.5);
}

double linear(double distance) {
  return std::max(0.0, 1 - std::abs(distance));
}

double cubic(double distance, double a) {
  const double x = std::abs(distance);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

// Where place i of `out` lies among `in` elements. ONNX's vectors have align_corners measure by in · scale, of which
// `out` is the whole part.
double coordinate(const std::string& mode, int64_t i, int64_t in, int64_t out, double scale, double begin, double end) {
  const double x = double(i), length = double(in), made = double(out);
  if (mode == "asymmetric") return x / scale;
  if (mode == "align_corners") return out == 1 ? 0 : x * (length - 1) / (scale * length - 1);
  if (mode == "tf_half_pixel_for_nn") return (x + 0.5) / scale;
  if (mode == "pytorch_half_pixel" && out == 1) return 0;
  if (mode == "tf_crop_and_resize") {
    return out == 1 ? 0.5 * (begin + end) * (length - 1)
                    : begin * (length - 1) + x * (end - begin) * (length - 1) / (made - 1);
  }
  const double centred = (x + 0.5) / scale - 0.5;
  return mode == "half_pixel_symmetric" ? length / 2 * (1 - made / (scale * length)) + centred : centred;
}

}  // namespace

AxisTerms AxisTerms::transposed(int64_t extent) const {
  AxisTerms back;
  back.start.assign(size_t(extent) + 1, 0);
  for (const int64_t i : index) ++back.start[size_t(i) + 1];
  std::partial_sum(back.start.begin(), back.start.end(), back.start.begin());
  back.index.resize(index.size());
  back.weight.resize(weight.size());
  std::vector<int64_t> next(back.start.begin(), back.start.end() - 1);
  for (size_t place = 0; place + 1 < start.size(); ++place) {
    for (int64_t t = start[place]; t < start[place + 1]; ++t) {
      const size_t to = size_t(next[size_t(index[size_t(t)])]++);
      back.index[to] = int64_t(place);
      back.weight[to] = weight[size_t(t)];
    }
  }
  return back;
}

Resizing::Resizing(const Node& node, const Shape& x)
    : shape(x), scales(x.size(), 1.0), begin(x.size(), 0.0), end(x.size(), 1.0) {
  const bool newer = node.op->attribute_spec("roi") != nullptr;
  const auto floats = [&](const char* name) {
    return newer || std::string(name) == "scales" ? floats_attribute(node, name) : std::vector<double>();
  };
  const std::vector<double> region = is_old(node) ? std::vector<double>() : floats("roi");
  const std::vector<double> factors = newer && is_old(node) ? floats("roi") : floats("scales");
  const std::vector<int64_t> sizes = newer ? ints_attribute(node, "sizes") : std::vector<int64_t>();
  std::vector<int64_t> axes = newer ? ints_attribute(node, "axes") : std::vector<int64_t>();
  if (axes.empty()) {
    axes.resize(x.size());
    std::iota(axes.begin(), axes.end(), int64_t{0});
  }
  const std::string policy = newer ? string_attribute(node, "keep_aspect_ratio_policy") : "stretch";
  const auto axis = [&](size_t i) { return size_t(axes[i] < 0 ? axes[i] + int64_t(x.size()) : axes[i]); };
  double common = 0;
  for (size_t i = 0; i < sizes.size() && policy != "stretch"; ++i) {
    const double scale = double(sizes[i]) / double(x[axis(i)]);
    const bool first = i == 0;
    common = first ? scale : policy == "not_larger" ? std::min(common, scale) : std::max(common, scale);
  }
  for (size_t i = 0; i < axes.size(); ++i) {
    const size_t a = axis(i);
    const double length = double(x[a]);
    if (i < sizes.size()) {
      scales[a] = policy == "stretch" ? double(sizes[i]) / length : common;
      shape[a] = policy == "stretch" ? sizes[i] : int64_t(std::floor(length * common + 0.5));
    } else if (i < factors.size()) {
      scales[a] = factors[i];
      shape[a] = int64_t(std::floor(length * factors[i]));
    }
    if (region.size() == 2 * axes.size()) begin[a] = region[i], end[a] = region[axes.size() + i];
  }
}

AxisTerms Resizing::terms(const Node& node, const Shape& x, size_t axis) const {
  const int64_t in = x[axis], out = shape[axis];
  const bool old = is_old(node);
  const std::string where = text(node, "coordinate_transformation_mode", "asymmetric");
  const std::string rounding = text(node, "nearest_mode", "floor"), mode = string_attribute(node, "mode");
  const bool antialias = !old && int_attribute(node, "antialias") != 0;
  const bool exclude = !old && int_attribute(node, "exclude_outside") != 0;
  const double a = old ? 0 : float_attribute(node, "cubic_coeff_a");
  const double narrowing = antialias ? std::min(scales[axis], 1.0) : 1.0;
  const int64_t first = int64_t(std::floor((mode == "cubic" ? -2 : -1) / narrowing)) + 1;
  AxisTerms terms;
  for (int64_t i = 0; i < out; ++i) {
    const double at = coordinate(where, i, in, out, scales[axis], begin[axis], end[axis]);
    const bool outside = where == "tf_crop_and_resize" && (at < 0 || at > double(in - 1));
    const size_t before = terms.weight.size();
    const auto add = [&](double index, double weight) {
      if (weight == 0) return;
      terms.index.push_back(int64_t(std::clamp(index, 0.0, double(in - 1))));
      terms.weight.push_back(weight);
    };
    if (!outside && mode == "nearest") {
      add(nearest(at, rounding), 1);
    } else if (!outside) {
      const double base = std::ceil(at) - 1;
      double sum = 0;
      for (int64_t k = first; k <= 1 - first; ++k) {
        const double distance = narrowing * (base + double(k) - at);
        const double weight = mode == "cubic" ? cubic(distance, a) : linear(distance);
        if (exclude && (base + double(k) < 0 || base + double(k) >= double(in))) continue;
        sum += weight;
        add(base + double(k), weight);
      }
      for (size_t t = before; t < terms.weight.size(); ++t) terms.weight[t] /= sum;
    }
    terms.start.push_back(int64_t(terms.weight.size()));
  }
  return terms;
}

Resampling::Resampling(const Node& node, const TensorType& x, const TensorType& y, bool backward) {
  const Resizing resizing(node, x.shape);
  const TensorType &from = backward ? y : x, &to = backward ? x : y;
  const std::vector<int64_t> from_strides = memory_strides(from), to_strides = memory_strides(to);
  std::vector<size_t> order;
  for (size_t axis = 0; axis < to.shape.size(); ++axis) {
    if (to.shape[axis] != 1 || from.shape[axis] != 1) order.push_back(axis);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return to_strides[a] > to_strides[b]; });
  count = to.elements();
  const bool region = node.op->attribute_spec("extrapolation_value") != nullptr;
  outside = region && !backward ? float_attribute(node, "extrapolation_value") : 0;
  for (const size_t axis : order) {
    const bool same = resizing.scales[axis] == 1 && resizing.shape[axis] == x.shape[axis] &&
                      resizing.begin[axis] == 0 && resizing.end[axis] == 1;
    const bool follows = rank > 0 && terms[rank - 1] < 0 && stride[rank - 1] == from_strides[axis] * from.shape[axis];
    if (same && follows) {
      extent[rank - 1] *= to.shape[axis];
      stride[rank - 1] = from_strides[axis];
      continue;
    }
    extent[rank] = to.shape[axis];
    stride[rank] = from_strides[axis];
    terms[rank] = same ? -1 : int(lists.size());
    ++rank;
    if (same) continue;
    AxisTerms list = resizing.terms(node, x.shape, axis);
    if (backward) list = list.transposed(x.shape[axis]);
    for (int64_t& index : list.index) index *= from_strides[axis];
    lists.push_back(std::move(list));
  }
}

}  // namespace arbalest
