// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tar archives for tests, written here so that they may be wrong in any way.

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <string>

namespace arbalest::test {

// A header of 512 bytes; ustar's, or GNU tar's with `gnu`.
inline std::string tar_header(const std::string& name, uint64_t size, char type = '0', bool gnu = false,
                              const std::string& prefix = "") {
  std::string header(512, '\0');
  const auto put = [&header](size_t at, const std::string& text) { header.replace(at, text.size(), text); };
  put(0, name.substr(0, 100));
  put(100, "0000644");
  put(108, "0001750");
  put(116, "0001750");
  put(124, fmt::format("{:011o}", size));
  put(136, "14000000000");
  header[156] = type;
  put(257, gnu ? "ustar  "
               : std::string("ustar\0"
                             "00",
                             8));
  put(345, prefix);
  put(148, "        ");
  uint32_t sum = 0;
  for (const char byte : header) sum += uint8_t(byte);
  put(148, fmt::format("{:06o}", sum) + std::string("\0 ", 2));
  return header;
}

inline std::string padded(std::string bytes) {
  bytes.resize((bytes.size() + 511) / 512 * 512);
  return bytes;
}

inline std::string tar_member(const std::string& name, const std::string& content, char type = '0') {
  return tar_header(name, content.size(), type) + padded(content);
}

// A record of a pax header, whose length counts itself.
inline std::string pax_record(const std::string& key, const std::string& value) {
  const size_t rest = key.size() + value.size() + 3;
  size_t length = rest + 1;
  while (rest + std::to_string(length).size() != length) ++length;
  return fmt::format("{} {}={}\n", length, key, value);
}

inline std::string tar_end() {
  return std::string(1024, '\0');
}

}  // namespace arbalest::test
