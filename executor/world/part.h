// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bytes of a rank's part (executor/world/ranks.h): numbers and arrays, one after the other. All ranks are one
// build, so values stand there as they lie in memory.

#include <cstdint>
#include <cstring>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace arbalest {

// The lines of a part that is text.
inline std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

class PartWriter {
 public:
  std::string bytes;

  template <typename Number>
  void number(Number value) {
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  template <typename Array>  // a std::vector or a std::string
  void array(const Array& content) {
    number(uint64_t(content.size()));
    bytes.append(reinterpret_cast<const char*>(content.data()), content.size() * sizeof(*content.data()));
  }
};

// Reads what a PartWriter wrote, in the same order. Throws RunError if the part is too short.
class PartReader {
 public:
  explicit PartReader(const std::string& part) : left_(part) {}

  bool at_end() const { return left_.empty(); }
  std::span<const char> left() const { return left_; }  // what has not been read
  template <typename Number>
  Number number() {
    Number value{};
    take(&value, sizeof value);
    return value;
  }
  template <typename Element>
  std::vector<Element> array() {
    return elements<std::vector<Element>>();
  }
  std::string text() { return elements<std::string>(); }

 private:
  [[noreturn]] static void fail() { throw RunError("a rank sent a part that ends too early"); }
  void take(void* to, size_t count) {
    if (count > left_.size()) fail();
    if (count > 0) std::memcpy(to, left_.data(), count);
    left_ = left_.subspan(count);
  }
  template <typename Array>
  Array elements() {
    constexpr size_t kBytes = sizeof(typename Array::value_type);
    const auto count = number<uint64_t>();
    if (count > left_.size() / kBytes) fail();
    Array content;
    content.resize(count);
    take(content.data(), count * kBytes);
    return content;
  }

  std::span<const char> left_;
};

// Several parts as one.
inline std::string packed(const std::vector<std::string>& parts) {
  PartWriter all;
  for (const std::string& part : parts) all.array(part);
  return std::move(all.bytes);
}

}  // namespace arbalest
