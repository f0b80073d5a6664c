// SPDX-License-Identifier: Apache-2.0
#pragma once
// Element types, shapes and tensor types: what every other header speaks of.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace arbalest {

enum class DataType : uint8_t { Float32, Float64, Bfloat16, Bool, Uint8, Int32, Int64, String, Token };

// The types that elements of tensors in memory have.
inline constexpr DataType kElementTypes[] = {DataType::Float32, DataType::Float64, DataType::Bfloat16, DataType::Bool,
                                             DataType::Uint8,   DataType::Int32,   DataType::Int64};

// A string is bytes of any length, such as an image file: what a source reads and a host node prepares
// (graph/preparation.h), which no plan keeps. A token carries no data: it orders Train, Synchronize and Validate after
// what they stand on.
constexpr size_t size_of(DataType type) {
  switch (type) {
    case DataType::Float64:
    case DataType::Int64: return 8;
    case DataType::Float32:
    case DataType::Int32: return 4;
    case DataType::Bfloat16: return 2;
    case DataType::Bool:  // 0 or 1
    case DataType::Uint8: return 1;
    case DataType::String:
    case DataType::Token: return 0;
  }
  return 0;
}

// The name that graph files, plans and error messages use: ONNX's ("float", "bfloat16", "uint8", …).
std::string_view name_of(DataType type);

// The number that ONNX gives the type (TensorProto.DataType): attributes such as Cast's `to` hold it.
int64_t onnx_number(DataType type);
// The type of the number; none if it stands for another of ONNX's types, or for nothing.
std::optional<DataType> type_of_onnx(int64_t number);
// "int8", of any of ONNX's types; "" if the number stands for nothing.
std::string_view onnx_type_name(int64_t number);

constexpr bool is_floating(DataType type) {
  return type == DataType::Float32 || type == DataType::Float64 || type == DataType::Bfloat16;
}

// bfloat16 on the CPU: storage only; arithmetic happens in float.
struct bfloat16 {
  uint16_t bits = 0;

  bfloat16() = default;
  explicit bfloat16(float value) {
    const uint32_t wide = std::bit_cast<uint32_t>(value);
    const bool nan = (wide & 0x7fffffffu) > 0x7f800000u;
    bits = nan ? uint16_t((wide >> 16) | 0x40u) : uint16_t((wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }
  explicit operator double() const { return double(float(*this)); }
};

// Logical extents, outermost first. Images are (N, C, H, W) and filters (K, C, R, S), as in ONNX, whatever their order
// in memory.
using Shape = std::vector<int64_t>;

// An axis counted from 0; a negative one counts from the end.
inline size_t normalized_axis(int64_t axis, size_t rank) {
  return size_t(axis < 0 ? axis + int64_t(rank) : axis);
}

inline int64_t element_count(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

// "(64, 3, 32, 32)"; "()" for a scalar.
std::string to_string(const Shape& shape);

// How the elements of a tensor lie in memory, on every device. Files (graph files, safetensors) are row-major.
enum class Layout : uint8_t {
  RowMajor,      // the last axis is innermost
  ChannelsLast,  // axis 1 is innermost, the others keep their order: images N·H·W·C, filters K·R·S·C
};

// "row_major", "channels_last"
std::string_view name_of(Layout layout);

struct TensorType {
  DataType dtype = DataType::Float32;
  Shape shape;
  Layout layout = Layout::RowMajor;  // of ranks below 3 always, where the two are one

  // The same tensor in another layout.
  TensorType in(Layout wanted) const { return {dtype, shape, shape.size() < 3 ? Layout::RowMajor : wanted}; }
  // Whether a tensor in layout `wanted` has its elements in the same order: with one channel, or one element a channel,
  // both orders are one.
  bool lies_as(Layout wanted) const {
    if (in(wanted).layout == layout) return true;
    const int64_t outer = shape[0] * shape[1];
    return shape[1] == 1 || elements() == outer || elements() == 0;
  }
  int64_t elements() const { return element_count(shape); }
  int64_t bytes() const { return elements() * int64_t(size_of(dtype)); }
  bool operator==(const TensorType&) const = default;
};

// ONNX's textual form: "float[64,3,32,32]"; "float[]" for a scalar; "token".
std::string to_string(const TensorType& type);

}  // namespace arbalest
