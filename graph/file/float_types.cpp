// SPDX-License-Identifier: Apache-2.0
#include "graph/file/float_types.h"

#include <cstring>
#include <optional>

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

using Data = std::shared_ptr<const std::vector<std::byte>>;

// Makes floats of what has the type `From`, which is `dtype`.
template <typename From>
struct ToFloat {
  DataType dtype;

  void convert(TensorType& type, Data& data) const {
    if (type.dtype != dtype) return;
    type.dtype = DataType::Float32;
    if (!data) return;
    data =
        std::make_shared<const std::vector<std::byte>>(as_floats<From>(*data, [](From from) { return float(from); }));
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

// None where no value is floating.
std::optional<bool> are_double(const std::vector<SourceValue>& values) {
  std::optional<bool> all;
  for (const SourceValue& value : values) {
    if (value.type && is_floating(value.type->dtype)) {
      all = all.value_or(true) && value.type->dtype == DataType::Float64;
    }
  }
  return all;
}

}  // namespace

std::vector<std::byte> widened_float16(const std::vector<std::byte>& halves) {
  return as_floats<uint16_t>(halves, float_of_half);
}

bool is_in_double(const GraphSource& source) {
  return are_double(source.inputs).value_or(are_double(source.outputs).value_or(false));
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
