// SPDX-License-Identifier: Apache-2.0
#include "io/formats/safetensors_format.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace arbalest::safetensors {

namespace {

std::string cut(std::string text, size_t longest) {
  return text.size() > longest ? text.substr(0, longest - 3) + "..." : text;
}

std::string json_text(const Json& value) {
  return value.dump(-1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace

Reporter::Reporter(const std::filesystem::path& path, const std::string* tensor) : where_(path.string()) {
  constexpr size_t kLongestName = 120;
  if (tensor) where_ += ": tensor " + cut(json_text(Json(*tensor)), kLongestName);
}

void Reporter::fail(const std::string& what, const std::string& expected, const std::string& found) const {
  throw RunError(fmt::format("{}: {}: expected {}, found {}", where_, what, expected, found));
}

std::string shown(const Json& value) {
  return cut(json_text(value), 60);
}

uint64_t byte_count(uint64_t element_bytes, const Shape& shape, const Reporter& report) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  uint64_t bytes = element_bytes;
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, uint64_t(extent), &bytes) || bytes > uint64_t(INT64_MAX)) {
      report.fail("shape", "a tensor that memory can hold", cut(to_string(shape), 60));
    }
  }
  return bytes;
}

}  // namespace arbalest::safetensors
