// SPDX-License-Identifier: Apache-2.0

// Coordinates, filters and terms of Resize, as ONNX defines them.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

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

// The factor exactly, or, if it is the float next to a whole number of elements over `length`, as exporters store
// 18 / 14, that quotient.
Quotient scale_of(double factor, int64_t length) {
  const int64_t whole = std::llround(double(length) * factor);
  if (whole > 0 && float(double(whole) / double(length)) == float(factor)) return {whole, length};
  constexpr int kDigits = std::numeric_limits<double>::digits;
  if (factor * double(length) < 1) return {0, 1};  // no elements
  int exponent = 0;
  const auto digits = int64_t(std::ldexp(std::frexp(factor, &exponent), kDigits));
  exponent -= kDigits;  // −84 to −22: lengths and factors are below 2^31
  return {digits, __int128{1} << -exponent};
}

__int128 nearest(const Quotient& at, const std::string& mode) {
  if (mode == "floor") return floor_of(at);
  if (mode == "ceil") return ceil_of(at);
  return mode == "round_prefer_ceil" ? round_of(at) : -round_of({-at.over, at.under});
}

double linear(double distance) {
  return std::max(0.0, 1 - std::abs(distance));
}

double cubic(double distance, double a) {
  const double x = std::abs(distance);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

// Position of place i of `out` in a region that begins and ends at these fractions of the axis. Fractions are taken as
// multiples of a power of two, as all floats of 2^-37 and more are.
Quotient in_region(int64_t i, int64_t in, int64_t out, double begin, double end) {
  int exponent = 0;
  std::frexp(std::max(std::abs(begin), std::abs(end)), &exponent);
  const int bits = std::min(std::numeric_limits<double>::digits - exponent, 60);  // at least 22: see infer_from()
  const __int128 from = std::llround(std::ldexp(begin, bits)), to = std::llround(std::ldexp(end, bits));
  const __int128 one = __int128{1} << bits;
  if (out == 1) return {(from + to) * (in - 1), 2 * one};
  return {(from * (out - 1) + i * (to - from)) * (in - 1), one * (out - 1)};
}

// Position of place i of `out` among `in` elements. All terms are below 2^117, since i · scale.under < in · scale.over.
Quotient position(const std::string& mode, int64_t i, int64_t in, int64_t out, const Quotient& scale) {
  const __int128 over = scale.over, under = scale.under, middle = 2 * __int128{i} + 1;
  if (mode == "asymmetric") return {i * under, over};
  if (mode == "align_corners") return out == 1 ? Quotient{} : Quotient{__int128{i} * (in - 1), out - 1};
  if (mode == "tf_half_pixel_for_nn") return {middle * under, 2 * over};
  if (mode == "pytorch_half_pixel" && out == 1) return {};
  if (mode == "half_pixel_symmetric") return {(in - 1) * over + (middle - out) * under, 2 * over};
  return {middle * under - over, 2 * over};
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
    : shape(x), scales(x.size(), {1, 1}), begin(x.size(), 0.0), end(x.size(), 1.0) {
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
  Quotient common;
  for (size_t i = 0; i < sizes.size() && policy != "stretch"; ++i) {
    const Quotient scale{sizes[i], x[axis(i)]};
    const bool less = scale.over * common.under < common.over * scale.under;
    if (i == 0 || less == (policy == "not_larger")) common = scale;
  }
  for (size_t i = 0; i < axes.size(); ++i) {
    const size_t a = axis(i);
    const int64_t length = x[a];
    if (i < sizes.size()) {
      scales[a] = policy == "stretch" ? Quotient{sizes[i], length} : common;
      shape[a] = int64_t(round_of({length * scales[a].over, scales[a].under}));
    } else if (i < factors.size()) {
      scales[a] = scale_of(factors[i], length);
      shape[a] = int64_t(floor_of({length * scales[a].over, scales[a].under}));
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
  const Quotient scale = scales[axis];
  const Quotient narrowing = antialias && scale.over < scale.under ? scale : Quotient{1, 1};
  AxisTerms terms;
  for (int64_t i = 0; i < out; ++i) {
    const Quotient at = where == "tf_crop_and_resize" ? in_region(i, in, out, begin[axis], end[axis])
                                                      : position(where, i, in, out, scale);
    const bool outside = where == "tf_crop_and_resize" && (at.over < 0 || at.over > (in - 1) * at.under);
    const size_t before = terms.weight.size();
    const auto add = [&](__int128 index, double weight) {
      if (weight == 0) return;
      terms.index.push_back(int64_t(std::clamp<__int128>(index, 0, in - 1)));
      terms.weight.push_back(weight);
    };
    if (!outside && mode == "nearest") {
      add(nearest(at, rounding), 1);
    } else if (!outside) {
      const __int128 base = ceil_of(at) - 1;
      const auto first = int64_t(floor_of({(mode == "cubic" ? -2 : -1) * narrowing.under, narrowing.over})) + 1;
      double sum = 0;
      for (int64_t k = first; k <= 1 - first; ++k) {
        const __int128 place = base + k;
        const double distance =
            double(place * at.under - at.over) * double(narrowing.over) / (double(at.under) * double(narrowing.under));
        const double weight = mode == "cubic" ? cubic(distance, a) : linear(distance);
        if (exclude && (place < 0 || place >= in)) continue;
        sum += weight;
        add(place, weight);
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
  // Axes of one element have any place in the result's order, so that the source's decides.
  const auto steps = [&](size_t axis) { return std::pair(to_strides[axis], from_strides[axis]); };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return steps(a) > steps(b); });
  count = to.elements();
  const bool region = node.op->attribute_spec("extrapolation_value") != nullptr;
  outside = region && !backward ? float_attribute(node, "extrapolation_value") : 0;
  for (const size_t axis : order) {
    const bool same = resizing.scales[axis].over == resizing.scales[axis].under &&
                      resizing.shape[axis] == x.shape[axis] && resizing.begin[axis] == 0 && resizing.end[axis] == 1;
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

namespace {

// One term for those of a place that read the same element, as all do beyond the source's ends.
AxisTerms merged(const AxisTerms& list) {
  AxisTerms terms;
  for (size_t i = 0; i + 1 < list.start.size(); ++i) {
    for (int64_t t = list.start[i]; t < list.start[i + 1]; ++t) {
      const int64_t index = list.index[size_t(t)];
      if (t > list.start[i] && terms.index.back() == index) {
        terms.weight.back() += list.weight[size_t(t)];
        continue;
      }
      terms.index.push_back(index);
      terms.weight.push_back(list.weight[size_t(t)]);
    }
    terms.start.push_back(int64_t(terms.index.size()));
  }
  return terms;
}

// Terms of an axis of the walk; one a place if it stays as it is.
AxisTerms axis_terms(const Resampling& r, int axis) {
  if (r.terms[axis] >= 0) return merged(r.lists[size_t(r.terms[axis])]);
  AxisTerms terms;
  for (int64_t i = 0; i < r.extent[axis]; ++i) {
    terms.index.push_back(i * r.stride[axis]);
    terms.start.push_back(i + 1);
  }
  terms.weight.assign(terms.index.size(), 1.0);
  return terms;
}

// Terms of two axes that are taken as one.
AxisTerms product(const AxisTerms& a, const AxisTerms& b) {
  AxisTerms terms;
  for (size_t i = 0; i + 1 < a.start.size(); ++i) {
    for (size_t j = 0; j + 1 < b.start.size(); ++j) {
      for (auto s = size_t(a.start[i]); s < size_t(a.start[i + 1]); ++s) {
        for (auto t = size_t(b.start[j]); t < size_t(b.start[j + 1]); ++t) {
          terms.index.push_back(a.index[s] + b.index[t]);
          terms.weight.push_back(a.weight[s] * b.weight[t]);
        }
      }
      terms.start.push_back(int64_t(terms.index.size()));
    }
  }
  return terms;
}

}  // namespace

RowResampling::RowResampling(const Resampling& r) : rows{{0, 1}, {0}, {1}}, columns(rows) {
  int axis = 0, past = r.rank;
  if (past > 0 && r.terms[past - 1] < 0) --past, inner = r.extent[past], inner_stride = r.stride[past];
  if (past > 0) --past, columns = axis_terms(r, past), column_stride = r.stride[past];
  if (past > 0 && r.terms[0] < 0) ++axis, outer = r.extent[0], outer_stride = r.stride[0];
  for (; axis < past; ++axis) rows = product(rows, axis_terms(r, axis));
}

}  // namespace arbalest
