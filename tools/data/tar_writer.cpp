// SPDX-License-Identifier: Apache-2.0
#include "tools/data/tar_writer.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <vector>

#include "base/error.h"
#include "base/files/file.h"

namespace arbalest {
namespace {

constexpr uint64_t kBlock = 512;
constexpr size_t kBuffer = 1 << 20;
constexpr uint64_t kMostMemberBytes = (uint64_t{1} << 33) - 1;  // that eleven octal digits state

uint64_t padding(uint64_t size) {
  return (kBlock - size % kBlock) % kBlock;
}

// POSIX.1-1988 (ustar), "tar Interchange Format".
std::array<uint8_t, kBlock> header_of(std::string_view name, uint64_t size) {
  std::array<uint8_t, kBlock> header{};
  const auto put = [&](size_t at, const std::string& text) { std::copy(text.begin(), text.end(), &header[at]); };
  put(0, std::string(name));
  put(100, "0000644");
  put(108, "0000000");  // owner
  put(116, "0000000");  // group
  put(124, fmt::format("{:011o}", size));
  put(136, "00000000000");  // time
  put(148, "        ");     // what the checksum counts in its own place
  header[156] = '0';        // a file
  put(257, std::string("ustar\0"
                       "00",
                       8));
  unsigned sum = 0;
  for (const uint8_t byte : header) sum += byte;
  put(148, fmt::format("{:06o}", sum));
  header[154] = 0;
  return header;
}

}  // namespace

uint64_t TarWriter::member_bytes(uint64_t size) {
  return kBlock + size + padding(size);
}

void TarWriter::add(std::string_view name, std::span<const std::byte> content) {
  if (name.size() > 100 || content.size() > kMostMemberBytes) {
    throw RunError(fmt::format("'{}' of {} bytes: expected a name of 100 bytes at most, and less than 8 GiB", name,
                               content.size()));
  }
  put(header_of(name, content.size()));
  put({reinterpret_cast<const uint8_t*>(content.data()), content.size()});
  put(std::vector<uint8_t>(padding(content.size())));
}

void TarWriter::finish() {
  put(std::vector<uint8_t>(2 * kBlock));  // the end of an archive
  flush();
  file_.commit();
}

void TarWriter::put(std::span<const uint8_t> bytes) {
  buffer_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  bytes_ += bytes.size();
  if (buffer_.size() >= kBuffer) flush();
}

void TarWriter::flush() {
  crc32_ = uint32_t(crc32_z(crc32_, reinterpret_cast<const Bytef*>(buffer_.data()), buffer_.size()));
  file_.write(std::string_view(buffer_));
  buffer_.clear();
}

uint32_t checksum_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_file("opened", path);
  std::vector<char> buffer(kBuffer);
  uint32_t checksum = 0;
  while (file.read(buffer.data(), std::streamsize(buffer.size())), file.gcount() > 0) {
    checksum = uint32_t(crc32_z(checksum, reinterpret_cast<const Bytef*>(buffer.data()), size_t(file.gcount())));
  }
  if (file.bad()) fail_file("read", path);
  return checksum;
}

}  // namespace arbalest
