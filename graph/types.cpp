// SPDX-License-Identifier: Apache-2.0
#include "graph/types.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>

namespace arbalest {

std::string_view name_of(DataType type) {
  switch (type) {
    case DataType::Float32: return "float";
    case DataType::Float64: return "double";
    case DataType::Bfloat16: return "bfloat16";
    case DataType::Bool: return "bool";
    case DataType::Uint8: return "uint8";
    case DataType::Int32: return "int32";
    case DataType::Int64: return "int64";
    case DataType::String: return "string";
    case DataType::Token: return "token";
  }
  return "?";
}

int64_t onnx_number(DataType type) {
  switch (type) {
    case DataType::Float32: return 1;
    case DataType::Uint8: return 2;
    case DataType::Int32: return 6;
    case DataType::Int64: return 7;
    case DataType::Bool: return 9;
    case DataType::Float64: return 11;
    case DataType::Bfloat16: return 16;
    case DataType::String: return 8;
    case DataType::Token: break;
  }
  return 0;
}

std::optional<DataType> type_of_onnx(int64_t number) {
  for (const DataType type : kElementTypes) {
    if (onnx_number(type) == number) return type;
  }
  return std::nullopt;
}

std::string_view onnx_type_name(int64_t number) {
  static constexpr std::string_view kNames[] = {
      "",          "float",      "uint8",      "int8",         "uint16",         "int16",      "int32",
      "int64",     "string",     "bool",       "float16",      "double",         "uint32",     "uint64",
      "complex64", "complex128", "bfloat16",   "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz",
      "uint4",     "int4",       "float4e2m1", "float8e8m0"};
  return number >= 0 && number < int64_t(std::size(kNames)) ? kNames[number] : "";
}

std::string_view name_of(Layout layout) {
  return layout == Layout::ChannelsLast ? "channels_last" : "row_major";
}

std::string to_string(const Shape& shape) {
  return fmt::format("({})", fmt::join(shape, ", "));
}

std::string to_string(const TensorType& type) {
  if (type.dtype == DataType::Token) return "token";
  return fmt::format("{}[{}]", name_of(type.dtype), fmt::join(type.shape, ","));
}

}  // namespace arbalest
