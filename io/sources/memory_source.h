// SPDX-License-Identifier: Apache-2.0
#pragma once
// A split that is in memory whole: arrays of the caller's, and what data sets of files and generated ones become.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/sources/source.h"

namespace arbalest {

// All samples of one field, one after the other, as Source::fill() writes them. Images (C, H, W) are an array (n,
// height, width, channels), anything else is a row-major one (n, …).
struct FieldArray {
  Field field;
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;  // keeps the bytes alive; none: the caller does
  std::string stored_as = {};         // the type that a file has instead of the field's; "": the same
};

namespace detail {
template <typename T>
constexpr DataType kElement = DataType::Token;
template <>
inline constexpr DataType kElement<float> = DataType::Float32;
template <>
inline constexpr DataType kElement<double> = DataType::Float64;
template <>
inline constexpr DataType kElement<bfloat16> = DataType::Bfloat16;
template <>
inline constexpr DataType kElement<uint8_t> = DataType::Uint8;
template <>
inline constexpr DataType kElement<int32_t> = DataType::Int32;
template <>
inline constexpr DataType kElement<int64_t> = DataType::Int64;
}  // namespace detail

// A field over the caller's array, which is not copied and has to outlive every run that reads it. `shape` is that of
// one sample; `classes`, if it is given, bounds the values.
template <typename T>
FieldArray field_array(std::string name, Shape shape, std::span<const T> values, int64_t classes = 0) {
  static_assert(detail::kElement<T> != DataType::Token, "float, double, bfloat16, uint8_t, int32_t or int64_t");
  return {{std::move(name), detail::kElement<T>, std::move(shape), classes}, std::as_bytes(values), nullptr};
}
// The same over a vector, which is not copied either.
template <typename T>
FieldArray field_array(std::string name, Shape shape, const std::vector<T>& values, int64_t classes = 0) {
  return field_array(std::move(name), std::move(shape), std::span<const T>(values), classes);
}

// The same over an array that the source keeps.
template <typename T>
FieldArray owned_array(std::string name, Shape shape, std::vector<T> values, int64_t classes = 0) {
  const auto kept = std::make_shared<const std::vector<T>>(std::move(values));
  FieldArray array = field_array(std::move(name), std::move(shape), *kept, classes);
  array.owner = kept;
  return array;
}

// A source over arrays; `name` stands for it in messages, `class_names` are what classes are called. Throws GraphError
// if fields cannot be what they say (check_fields), or if arrays hold different numbers of samples, none, or a part of
// one. Throws it also if a class index is out of range. All values of fields with classes are looked at.
std::unique_ptr<Source> memory_source(std::vector<FieldArray> arrays, std::string name = "memory",
                                      std::vector<std::string> class_names = {});

}  // namespace arbalest
