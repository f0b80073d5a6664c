#include "graph/types.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

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
    case DataType::Token: return "token";
  }
  return "?";
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
