// SPDX-License-Identifier: Apache-2.0
#include "io/formats/tar_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "base/number.h"

namespace arbalest {
namespace {

constexpr uint64_t kBlock = 512;

// A header as in POSIX.1-1988, with GNU tar's deviations.
struct TarHeader {
  char name[100];
  char mode[8], uid[8], gid[8];
  char size[12];
  char mtime[12];
  char checksum[8];
  char type;
  char link[100];
  char magic[8];
  char user[32], group[32], major[8], minor[8];
  char prefix[155];
  char padding[12];
};
static_assert(sizeof(TarHeader) == kBlock);

template <size_t kSize>
std::string_view text(const char (&field)[kSize]) {
  return {field, size_t(std::find(field, field + kSize, '\0') - field)};
}

// A number field: octal digits among spaces, or, in GNU tar's form, base 256 if the first bit is set.
template <size_t kSize>
std::optional<uint64_t> number(const char (&field)[kSize]) {
  if (uint8_t(field[0]) == 0x80) {
    uint64_t value = 0;
    for (size_t i = 1; i < kSize; ++i) {
      if (value >> 55 != 0) return std::nullopt;
      value = value << 8 | uint8_t(field[i]);
    }
    return value;
  }
  std::string_view digits = text(field);
  digits.remove_prefix(std::min(digits.find_first_not_of(' '), digits.size()));
  while (digits.ends_with(' ')) digits.remove_suffix(1);
  return read_number<uint64_t>(digits, 8);
}

// The sum of the header's bytes; those of the checksum itself count as spaces.
uint64_t checksum(const TarHeader& header) {
  std::array<uint8_t, kBlock> bytes;
  std::memcpy(bytes.data(), &header, kBlock);
  uint64_t sum = sizeof header.checksum * uint64_t{' '};
  for (size_t i = 0; i < kBlock; ++i) {
    const bool counted = i < offsetof(TarHeader, checksum) || i >= offsetof(TarHeader, type);
    if (counted) sum += bytes[i];
  }
  return sum;
}

bool all_zero(const char* bytes, size_t count) {
  return std::all_of(bytes, bytes + count, [](char byte) { return byte == '\0'; });
}

std::string name_of(const TarHeader& header) {
  constexpr std::string_view kPosix{"ustar\0", 6};  // GNU tar has other things in the prefix's place
  const std::string_view prefix = std::string_view(header.magic, kPosix.size()) == kPosix ? text(header.prefix) : "";
  return fmt::format("{}{}{}", prefix, prefix.empty() ? "" : "/", text(header.name));
}

TarMember::Type type_of(char type) {
  switch (type) {
    case '\0':
    case '0':
    case '7': return TarMember::Type::File;
    case '1':
    case '2': return TarMember::Type::Link;
    case '5': return TarMember::Type::Folder;
    default: return TarMember::Type::Other;
  }
}

}  // namespace

void TarReader::fail(uint64_t offset, const std::string& expected, const std::string& found) const {
  throw RunError(fmt::format("{}: at byte {}: expected {}, found {}", file_.path(), offset, expected, found));
}

// The content of an extension header. Refuses more than 1 MiB: real ones are short, but the archive may state any size.
std::string TarReader::content(uint64_t offset, uint64_t size) const {
  constexpr uint64_t kMost = 1 << 20;
  if (size > kMost) fail(offset, fmt::format("names of at most {} bytes", kMost), fmt::format("{} bytes", size));
  std::string bytes(size, '\0');
  file_.read(offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

void TarReader::read_extension(char type, uint64_t offset, uint64_t size, Extension& extension) const {
  const std::string bytes = content(offset, size);
  if (type == 'L') {
    extension.name = bytes.substr(0, bytes.find('\0'));
    return;
  }
  // Records "LENGTH KEY=VALUE\n", where the length is that of the whole record.
  std::string_view rest = bytes;
  while (!rest.empty()) {
    size_t length = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), length);
    const size_t digits = size_t(end - rest.data());
    const bool good =
        error == std::errc() && length > digits + 1 && length <= rest.size() && *end == ' ' && rest[length - 1] == '\n';
    const std::string_view record = good ? rest.substr(digits + 1, length - digits - 2) : "";
    const size_t equals = record.find('=');
    if (!good || equals == record.npos)
      fail(offset, "records 'LENGTH KEY=VALUE'", fmt::format("'{}'", rest.substr(0, 40)));
    const std::string_view key = record.substr(0, equals), value = record.substr(equals + 1);
    if (key == "path") extension.name = std::string(value);
    if (key == "size") {
      extension.size = read_number<uint64_t>(value);
      if (!extension.size) fail(offset, "a number of bytes", fmt::format("'{}'", record));
    }
    if (key.starts_with("GNU.sparse")) fail(offset, "files that are stored whole", "a sparse one");
    rest.remove_prefix(length);
  }
}

// Fails if data follows the end: it would be another archive, which readers of tar never see.
void TarReader::expect_zeros() const {
  std::vector<char> bytes(1 << 16);
  for (uint64_t at = at_; at < file_.size(); at += bytes.size()) {
    bytes.resize(size_t(std::min<uint64_t>(bytes.size(), file_.size() - at)));
    file_.read(at, std::as_writable_bytes(std::span(bytes)));
    if (!all_zero(bytes.data(), bytes.size())) fail(at_, "nothing but zeros after the archive's end", "more data");
  }
}

std::optional<TarMember> TarReader::next() {
  TarMember member;
  member.begin = at_;
  Extension extension;
  while (true) {
    if (at_ > file_.size() || file_.size() - at_ < kBlock) {
      fail(at_, "a header or the zeros that end an archive", "the end of the file");
    }
    TarHeader header;
    file_.read(at_, std::as_writable_bytes(std::span(&header, 1)));
    if (all_zero(reinterpret_cast<const char*>(&header), kBlock)) {
      if (member.begin != at_) fail(at_, "the header that a long name is of", "the archive's end");
      expect_zeros();
      return std::nullopt;
    }
    if (const std::optional<uint64_t> sum = number(header.checksum); sum != checksum(header)) {
      const bool gzipped = std::string_view(header.name, 2) == "\x1f\x8b";
      fail(at_,
           gzipped ? "a tar archive that is not compressed"
                   : fmt::format("a header with checksum {:o}", checksum(header)),
           gzipped ? "a gzipped one"
           : sum   ? fmt::format("{:o}", *sum)
                   : "none");
    }
    std::optional<uint64_t> size = number(header.size);
    const bool extends = header.type == 'x' || header.type == 'g' || header.type == 'L' || header.type == 'K';
    if (!extends && extension.size) size = extension.size;
    if (header.type >= '1' && header.type <= '6') size = 0;  // links, folders and devices have no content
    const uint64_t offset = at_ + kBlock;
    if (!size) fail(at_, "the size of a member", fmt::format("'{}'", text(header.size)));
    if (*size > file_.size() - offset) {
      fail(offset, fmt::format("{} bytes of '{}'", *size, extension.name.value_or(name_of(header))),
           fmt::format("{}, then the end of the file", file_.size() - offset));
    }
    at_ = offset + (*size + kBlock - 1) / kBlock * kBlock;
    if (header.type == 'x' || header.type == 'L') read_extension(header.type, offset, *size, extension);
    if (extends) continue;
    if (header.type == 'S') fail(member.begin, "files that are stored whole", "a sparse one");
    member.name = extension.name.value_or(name_of(header));
    member.type = type_of(header.type);
    member.offset = offset;
    member.size = *size;
    return member;
  }
}

}  // namespace arbalest
