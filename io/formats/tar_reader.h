// SPDX-License-Identifier: Apache-2.0
#pragma once
// The members of a tar archive: ustar, with the long names and sizes of POSIX (pax) and GNU tar.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/files/random_access_file.h"

namespace arbalest {

struct TarMember {
  enum class Type : uint8_t { File, Folder, Link, Other };
  std::string name;
  Type type = Type::File;
  uint64_t begin = 0;   // of its first header in the archive
  uint64_t offset = 0;  // of its content
  uint64_t size = 0;    // bytes of it
};

// Reads one member after the other, by their headers alone. All functions throw RunError with the file and the offset
// if the archive is malformed or cut off. Each header's checksum is checked, and zeros have to end the archive.
class TarReader {
 public:
  // `begin`: the offset of a member's first header, or 0.
  explicit TarReader(const RandomAccessFile& file, uint64_t begin = 0) : file_(file), at_(begin) {}

  std::optional<TarMember> next();  // none after the last

  [[noreturn]] void fail(uint64_t offset, const std::string& expected, const std::string& found) const;

 private:
  // Facts about a member from the extension headers before its own header.
  struct Extension {
    std::optional<std::string> name;
    std::optional<uint64_t> size;
  };
  std::string content(uint64_t offset, uint64_t size) const;
  void read_extension(char type, uint64_t offset, uint64_t size, Extension& extension) const;
  void expect_zeros() const;

  const RandomAccessFile& file_;
  uint64_t at_;  // of the next header
};

}  // namespace arbalest
