// SPDX-License-Identifier: Apache-2.0
#pragma once
// Numbers as a page carries them: each as a variable-length integer, seven bits a byte and the lowest first, a column
// deflated (zlib) and in base64. The page's decode.js reads them.

#include <cstdint>
#include <string>

namespace arbalest {

class Column {
 public:
  void add(uint64_t value) {
    for (; value >= 128; value >>= 7) bytes_ += char(value | 128);
    bytes_ += char(value);
    ++count_;
  }
  // Small numbers of either sign become small ones: 0, −1, 1, −2, … are 0, 1, 2, 3, …
  void add_signed(int64_t value) { add(uint64_t(value) << 1 ^ uint64_t(value >> 63)); }

  int64_t count() const { return count_; }
  std::string encoded() const;  // throws RunError if zlib cannot

 private:
  std::string bytes_;
  int64_t count_ = 0;
};

}  // namespace arbalest
