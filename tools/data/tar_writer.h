// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tar archives as WebDataset's readers take them.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/files/atomic_file.h"

namespace arbalest {

// Members of a ustar archive one after the other: files of mode 0644 without an owner or a time, so that the same
// members are the same bytes. The archive takes its name when it is finished. All functions throw RunError.
class TarWriter {
 public:
  explicit TarWriter(const std::filesystem::path& path) : file_(path) {}

  // Bytes that a member of so many takes in the archive.
  static uint64_t member_bytes(uint64_t size);

  // `name`: at most 100 bytes.
  void add(std::string_view name, std::span<const std::byte> content);
  void finish();

  uint64_t bytes() const { return bytes_; }     // written so far, with headers
  uint32_t checksum() const { return crc32_; }  // CRC-32 of them

 private:
  void put(std::span<const uint8_t> bytes);
  void flush();

  AtomicFile file_;
  std::string buffer_;
  uint64_t bytes_ = 0;
  uint32_t crc32_ = 0;
};

// CRC-32 of a whole file. Throws RunError.
uint32_t checksum_of(const std::filesystem::path& path);

}  // namespace arbalest
