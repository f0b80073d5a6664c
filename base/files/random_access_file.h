// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reading parts of a file at their offsets. Not by a memory map: a file that shrinks while it is read would end the
// process.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace arbalest {

class RandomAccessFile {
 public:
  // Throws RunError if the file cannot be opened or is no regular file: "PATH: expected WHAT, found a folder".
  RandomAccessFile(const std::filesystem::path& path, const std::string& what);
  ~RandomAccessFile();
  RandomAccessFile(const RandomAccessFile&) = delete;
  RandomAccessFile& operator=(const RandomAccessFile&) = delete;

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }  // bytes, when it was opened

  // All of `to` from `offset` on; the caller keeps within the size. By any number of threads at once. Throws RunError
  // if it cannot be read or has become shorter.
  void read(uint64_t offset, std::span<std::byte> to) const;

  // Tells the system that a part will be read soon, so that reading it starts now; or that it will not be for long, so
  // that it takes no memory.
  void advise(uint64_t offset, uint64_t size, bool needed) const;

 private:
  std::string path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

}  // namespace arbalest
