// SPDX-License-Identifier: Apache-2.0
#include "graph/file/float_types.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <type_traits>

#include "base/half.h"

namespace arbalest {
namespace {

template <typename From, typename Convert>
std::vector<std::byte> as_floats(const std::vector<std::byte>& numbers, Convert convert) {
  const size_t count = numbers.size() / sizeof(From);
  std::vector<std::byte> floats(count * sizeof(float));
  for (size_t i = 0; i < count; ++i) {
    From from;
    std::memcpy(&from, numbers.data() + i * sizeof from, sizeof from);
    const float number = convert(from);
    std::memcpy(floats.data() + i * sizeof number, &number, sizeof number);
  }
  return floats;
}

// Finite numbers stay finite: a mask of the least double, times 0, is no NaN.
template <typename From>
float nearest(From from) {
  if constexpr (std::is_same_v<From, double>) {
    constexpr double kMost = std::numeric_limits<float>::max();
    if (std::isfinite(from)) from = std::clamp(from, -kMost, kMost);
  }
  return float(from);
}

using Data = std::shared_ptr<const std::vector<std::byte>>;

// Makes floats of what has the type `From`, which is `dtype`.
template <typename From>
struct ToFloat {
  DataType dtype;

  void convert(TensorType& type, Data& data) const {
    if (type.dtype != dtype) return;
    type.dtype = DataType::Float32;
    if (!data) return;
    data = std::make_shared<const std::vector<std::byte>>(as_floats<From>(*data, nearest<From>));
  }
  void convert(std::vector<SourceValue>& values) const {
    for (SourceValue& value : values) {
      if (value.type) convert(*value.type, value.data);
    }
  }
  void convert(std::vector<SourceNode>& nodes) const {
    for (SourceNode& node : nodes) {
      for (SourceAttribute& attribute : node.attributes) {
        if (attribute.tensor) convert(attribute.tensor->type, attribute.tensor->data);
      }
      cast_to_float_instead(node, onnx_number(dtype));
    }
  }
  template <typename Source>  // a graph or a function
  void convert_all(Source& source) const {
    for (auto* values : {&source.inputs, &source.outputs, &source.values}) convert(*values);
    convert(source.nodes);
  }
  void convert(GraphSource& source) const {
    convert_all(source);
    for (SourceFunction& function : source.functions) convert_all(function);
  }
};

// Whether all floating types that are seen are double; nullopt if none is.
class Seen {
 public:
  void see(const TensorType& type) {
    if (is_floating(type.dtype)) all_ = all_.value_or(true) && type.dtype == DataType::Float64;
  }
  std::optional<bool> all() const { return all_; }

 private:
  std::optional<bool> all_;
};

}  // namespace

std::vector<std::byte> widened_float16(const std::vector<std::byte>& halves) {
  return as_floats<uint16_t>(halves, float_of_half);
}

bool is_in_double(const GraphSource& source) {
  Seen stored, given;
  for (const SourceValue& value : source.values) {
    if (value.type && value.data && value.type->elements() > 1) stored.see(*value.type);
  }
  for (const SourceNode& node : source.nodes) {
    for (const SourceAttribute& attribute : node.attributes) {
      if (attribute.tensor && attribute.tensor->type.elements() > 1) stored.see(attribute.tensor->type);
    }
  }
  for (const SourceValue& input : source.inputs) {
    if (input.type) given.see(*input.type);
  }
  return stored.all().value_or(given.all().value_or(false));
}

void read_as_float(GraphSource& source, bool doubles) {
  ToFloat<bfloat16>{DataType::Bfloat16}.convert(source);
  if (doubles) ToFloat<double>{DataType::Float64}.convert(source);
}

void cast_to_float_instead(SourceNode& node, int64_t number) {
  const bool standard = node.domain.empty() || node.domain == "ai.onnx";
  const bool draws = node.op.text.starts_with("Random") || node.op.text == "Bernoulli";
  if (!standard || (node.op.text != "Cast" && node.op.text != "EyeLike" && !draws)) return;
  for (SourceAttribute& attribute : node.attributes) {
    if ((attribute.name.text == "to" || attribute.name.text == "dtype") && attribute.value == Attribute(number)) {
      attribute.value = onnx_number(DataType::Float32);
    }
  }
}

}  // namespace arbalest
