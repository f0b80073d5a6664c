// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shared parts of the reader and the writer of safetensors: element types, sizes, errors.

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "graph/types.h"

namespace arbalest::safetensors {

using Json = nlohmann::json;

inline constexpr size_t kLengthBytes = 8;  // of the header's length, which comes first

struct FormatType {
  const char* name;
  DataType dtype;
  size_t widens = 0;  // bytes of an element that is of another type and is read as `dtype`; 0: it is of that type
};
inline constexpr FormatType kFormatTypes[] = {
    {"F64", DataType::Float64},   {"F32", DataType::Float32},  {"F16", DataType::Float32, 2},
    {"BF16", DataType::Bfloat16}, {"I64", DataType::Int64},    {"I32", DataType::Int32},
    {"I16", DataType::Int32, 2},  {"I8", DataType::Int32, 1},  {"U64", DataType::Int64, 8},
    {"U32", DataType::Int64, 4},  {"U16", DataType::Int32, 2}, {"U8", DataType::Uint8},
    {"BOOL", DataType::Bool}};

// Throws errors that begin with the file and the tensor. A tensor's name may be anything, so it is quoted as JSON and
// cut if it is long.
class Reporter {
 public:
  explicit Reporter(const std::filesystem::path& path, const std::string* tensor = nullptr);
  // Throws RunError: "FILE: tensor "NAME": WHAT: expected EXPECTED, found FOUND".
  [[noreturn]] void fail(const std::string& what, const std::string& expected, const std::string& found) const;

 private:
  std::string where_;
};

// A value as it stands in the header, cut if it is long.
std::string shown(const Json& value);

// Bytes of a tensor with elements of `element_bytes`; fails if they exceed the address space.
uint64_t byte_count(uint64_t element_bytes, const Shape& shape, const Reporter& report);

}  // namespace arbalest::safetensors
