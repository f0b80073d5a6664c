// SPDX-License-Identifier: Apache-2.0
#include "graph/file/half_types.h"

#include <cstring>

#include "base/half.h"

namespace arbalest {
namespace {

template <typename Half, typename Convert>
std::vector<std::byte> widened(const std::vector<std::byte>& halves, Convert convert) {
  const size_t count = halves.size() / sizeof(Half);
  std::vector<std::byte> floats(count * sizeof(float));
  for (size_t i = 0; i < count; ++i) {
    Half half;
    std::memcpy(&half, halves.data() + i * sizeof half, sizeof half);
    const float number = convert(half);
    std::memcpy(floats.data() + i * sizeof number, &number, sizeof number);
  }
  return floats;
}

using Data = std::shared_ptr<const std::vector<std::byte>>;

void widen(TensorType& type, Data& data) {
  if (type.dtype != DataType::Bfloat16) return;
  type.dtype = DataType::Float32;
  if (!data) return;
  data = std::make_shared<const std::vector<std::byte>>(
      widened<bfloat16>(*data, [](bfloat16 half) { return float(half); }));
}

void widen(std::vector<SourceValue>& values) {
  for (SourceValue& value : values) {
    if (value.type) widen(*value.type, value.data);
  }
}

void widen(std::vector<SourceNode>& nodes) {
  for (SourceNode& node : nodes) {
    for (SourceAttribute& attribute : node.attributes) {
      if (attribute.tensor) widen(attribute.tensor->type, attribute.tensor->data);
    }
    cast_to_float_instead(node, onnx_number(DataType::Bfloat16));
  }
}

}  // namespace

std::vector<std::byte> widened_float16(const std::vector<std::byte>& halves) {
  return widened<uint16_t>(halves, float_of_half);
}

void widen_bfloat16(GraphSource& source) {
  for (auto* values : {&source.inputs, &source.outputs, &source.values}) widen(*values);
  widen(source.nodes);
  for (SourceFunction& function : source.functions) {
    for (auto* values : {&function.inputs, &function.outputs, &function.values}) widen(*values);
    widen(function.nodes);
  }
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
