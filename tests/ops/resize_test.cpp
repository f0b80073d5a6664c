// SPDX-License-Identifier: Apache-2.0

// Positions of Resize, which are exact by the sizes: against resize_nearest.txt, which vectors/make_resize.py writes.

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <limits>
#include <map>
#include <numeric>
#include <sstream>

#include "graph/file/graph_file.h"
#include "ops/builtin_ops.h"
#include "ops/check/harness.h"
#include "ops/shape/resize.h"

using namespace arbalest;
using namespace arbalest::test;

namespace resize_test {
namespace {

using Numbers = std::vector<double>;

// The result of Resize for a vector on the CPU.
Numbers resized(const Numbers& x, const Attributes& attributes) {
  const TensorType type{DataType::Float32, {int64_t(x.size())}};
  const Case test(builtin_ops().get("Resize"), {type}, 1, attributes, "under_test");
  const auto device = make_cpu_device();
  const Outcome outcome = run_kernel(*device, test.get(), test.output_types(), {make_tensor(type, x)}, {});
  CHECK(outcome.fault == "");
  return values_of(outcome.outputs.at(0));
}

Numbers counted(int64_t elements) {
  Numbers numbers(static_cast<size_t>(elements));
  std::iota(numbers.begin(), numbers.end(), 0.0);
  return numbers;
}

Attributes nearest(const std::string& coordinates, const std::string& rounding) {
  return {{"coordinate_transformation_mode", coordinates}, {"nearest_mode", rounding}};
}

using Weights = std::map<int64_t, double>;  // of offsets in the source

// The weights of place `at` along axis `axis`, counted from the innermost, and of all axes outside of it.
Weights weights_at(const Resampling& r, int64_t at, int axis) {
  if (axis < 0) return {{0, 1.0}};
  const Weights outer = weights_at(r, at / r.extent[axis], axis - 1);
  const int64_t i = at % r.extent[axis];
  Weights weights;
  for (const auto& [offset, weight] : outer) {
    if (r.terms[axis] < 0) {
      weights[offset + i * r.stride[axis]] += weight;
      continue;
    }
    const AxisTerms& list = r.lists[size_t(r.terms[axis])];
    for (auto t = size_t(list.start[size_t(i)]); t < size_t(list.start[size_t(i) + 1]); ++t) {
      weights[offset + list.index[t]] += weight * list.weight[t];
    }
  }
  return weights;
}

Weights weights_at(const RowResampling& r, int64_t at) {
  const int64_t inner = at % r.inner, column = at / r.inner % r.columns.places();
  const int64_t row = at / r.inner / r.columns.places();
  const auto i = size_t(row % r.rows.places()), j = size_t(column);
  Weights weights;
  for (auto s = size_t(r.rows.start[i]); s < size_t(r.rows.start[i + 1]); ++s) {
    for (auto t = size_t(r.columns.start[j]); t < size_t(r.columns.start[j + 1]); ++t) {
      const int64_t offset = row / r.rows.places() * r.outer_stride + inner * r.inner_stride;
      weights[offset + r.rows.index[s] + r.columns.index[t]] += r.rows.weight[s] * r.columns.weight[t];
    }
  }
  return weights;
}

void check_rows(const Resampling& r) {
  const RowResampling rows(r);
  REQUIRE(rows.outer * rows.rows.places() * rows.columns.places() * rows.inner == r.count);
  for (int64_t at = 0; at < r.count; ++at) {
    const Weights expected = weights_at(r, at, r.rank - 1), found = weights_at(rows, at);
    REQUIRE(found.size() == expected.size());
    for (const auto& [offset, weight] : expected) {
      REQUIRE(found.count(offset) == 1);
      CHECK(found.at(offset) == doctest::Approx(weight).epsilon(1e-12));
    }
  }
}

}  // namespace

TEST_CASE("Resize takes the element that exact arithmetic says, in all coordinates and roundings") {
  const char* root = std::getenv("ARBALEST_SOURCE");
  const auto path = std::filesystem::path(root ? root : ".") / "tests/ops/vectors/resize_nearest.txt";
  std::istringstream lines(read_whole_file(path.string()));
  int64_t places = 0;
  for (std::string line; std::getline(lines, line);) {
    CAPTURE(line);
    std::istringstream words(line);
    std::string coordinates, rounding;
    int64_t before = 0, after = 0;
    words >> coordinates >> rounding >> before >> after;
    Numbers expected(static_cast<size_t>(after));
    for (double& number : expected) words >> number;
    Attributes attributes = nearest(coordinates, rounding);
    attributes.set("sizes", std::vector<int64_t>{after});
    CHECK(resized(counted(before), attributes) == expected);
    places += after;
  }
  CHECK(places == 24 * 330);
}

TEST_CASE("Resize with align_corners measures whole lengths, whatever the factor, as the text and PyTorch say") {
  const auto aligned = [](int64_t in, double factor, const char* mode) {
    Attributes attributes{{"coordinate_transformation_mode", "align_corners"}, {"mode", mode}};
    attributes.set("scales", std::vector<double>{factor});
    return resized(counted(in), attributes);
  };
  // 6 · 1.55 = 9.3 elements are 9, and element i lies at 5 i / 8.
  const Numbers y = aligned(6, 1.55, "linear");
  REQUIRE(y.size() == 9);
  for (size_t i = 0; i < y.size(); ++i) CHECK(y[i] == doctest::Approx(5.0 * double(i) / 8).epsilon(1e-7));
  CHECK(aligned(4, 0.6, "linear") == Numbers{0, 3});
  CHECK(aligned(4, 0.6, "cubic") == Numbers{0, 3});
  CHECK(aligned(5, 1.7, "nearest") == Numbers{0, 1, 1, 2, 2, 3, 3, 4});  // at 4 i / 7, ties down
}

TEST_CASE("Resize by a factor that is a float next to a quotient of sizes is as exact") {
  const double factors[] = {18.0 / 14, double(18.0f / 14.0f), 1.2857143};
  for (const double factor : factors) {
    Attributes attributes = nearest("asymmetric", "floor");
    attributes.set("scales", std::vector<double>{factor});
    const Numbers y = resized(counted(14), attributes);
    REQUIRE(y.size() == 18);
    for (size_t i = 0; i < y.size(); ++i) CHECK(y[i] == double(i * 14 / 18));
  }
  Attributes third = nearest("asymmetric", "floor");
  third.set("scales", std::vector<double>{0.333});  // 2.997 elements of 9, at 0 and 3.003
  CHECK(resized(counted(9), third) == Numbers{0, 3});
}

TEST_CASE("Resize reads no neighbour where a place lies on an element") {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  Attributes attributes = nearest("align_corners", "floor");
  attributes.set("sizes", std::vector<int64_t>{29});
  attributes.set("mode", std::string("linear"));
  Numbers x(7, kNan);
  x[3] = 5;
  CHECK(resized(x, attributes)[14] == 5);  // 14 · 6 / 28 = 3
  attributes.set("sizes", std::vector<int64_t>{5});
  attributes.set("antialias", int64_t{1});
  x = counted(13);  // every third element, and what lies within 2.6 of it
  const Numbers y = resized(x, attributes);
  CHECK(y[2] == doctest::Approx(6));
  CHECK(y.size() == 5);
}

TEST_CASE("Resize that keeps the aspect ratio rounds its sizes exactly, halves up") {
  const TensorType x{DataType::Float32, {4, 9}};
  const auto shape = [&](const char* policy, std::vector<int64_t> sizes) {
    const Case test(builtin_ops().get("Resize"), {x}, 1,
                    {{"sizes", std::move(sizes)}, {"keep_aspect_ratio_policy", std::string(policy)}}, "under_test");
    return test.output_types().at(0).shape;
  };
  CHECK(shape("not_larger", {2, 9}) == Shape{2, 5});     // by 1/2: 4.5
  CHECK(shape("not_smaller", {3, 4}) == Shape{3, 7});    // by 3/4: 6.75
  CHECK(shape("not_larger", {14, 21}) == Shape{9, 21});  // by 7/3: 9.33
}

TEST_CASE("Resize as rows and columns has the terms that its axes have, in both directions and all layouts") {
  const Op& op = builtin_ops().get("Resize");
  for (const Sample& sample : op.samples()) {
    CAPTURE(sample.name);
    const TensorType& x = sample.inputs[0].type;
    const Node node{.op = &op, .name = {}, .attributes = sample.attributes};
    const Shape shape = Resizing(node, x.shape).shape;
    for (const Layout layout : {Layout::RowMajor, Layout::ChannelsLast}) {
      const TensorType y = TensorType{x.dtype, shape}.in(layout);
      if (y.layout != layout || y.elements() > 20000) continue;
      check_rows(Resampling(node, x, y, false));
      check_rows(Resampling(node, x, y, true));
    }
  }
}

TEST_CASE("Gradients of images from single elements walk through channels that are neighbours, whatever the layout") {
  const Node node{.op = &builtin_ops().get("Resize"),
                  .name = {},
                  .attributes = {{"sizes", std::vector<int64_t>{2, 8, 5, 6}}, {"mode", std::string("linear")}}};
  const TensorType x{DataType::Float32, {2, 8, 1, 1}}, y{DataType::Float32, {2, 8, 5, 6}, Layout::ChannelsLast};
  for (const Layout layout : {Layout::RowMajor, Layout::ChannelsLast}) {
    const RowResampling rows(Resampling(node, x.in(layout), y, true));
    CHECK(rows.outer == 2);
    CHECK(rows.rows.index.size() == 5);
    CHECK(rows.columns.index.size() == 6);
    CHECK(rows.inner == 8);
    CHECK(rows.inner_stride == 1);
  }
}

}  // namespace resize_test
