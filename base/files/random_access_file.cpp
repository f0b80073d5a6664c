// SPDX-License-Identifier: Apache-2.0
#include "base/files/random_access_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"
#include "base/files/file.h"

namespace arbalest {

RandomAccessFile::RandomAccessFile(const std::filesystem::path& path, const std::string& what) : path_(path.string()) {
  errno = 0;
  descriptor_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe without a writer blocks nobody
  if (descriptor_ < 0) fail_file("opened", path);
  try {
    struct stat status = {};
    if (fstat(descriptor_, &status) != 0) fail_file("looked at", path);
    if (!S_ISREG(status.st_mode)) {
      throw RunError(fmt::format("{}: expected {}, found {}", path_, what,
                                 S_ISDIR(status.st_mode) ? "a folder" : "no regular file"));
    }
    size_ = uint64_t(status.st_size);
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

RandomAccessFile::~RandomAccessFile() {
  close(descriptor_);
}

void RandomAccessFile::read(uint64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    errno = 0;
    const ssize_t found = pread(descriptor_, to.data(), to.size(), off_t(offset));
    if (found < 0 && errno == EINTR) continue;
    if (found < 0) fail_file("read", path_);
    if (found == 0) throw RunError(fmt::format("{}: the file became shorter while it was read", path_));
    offset += uint64_t(found);
    to = to.subspan(size_t(found));
  }
}

void RandomAccessFile::advise(uint64_t offset, uint64_t size, bool needed) const {
  if (!needed) {
    posix_fadvise(descriptor_, off_t(offset), off_t(size), POSIX_FADV_DONTNEED);
    return;
  }
  constexpr uint64_t kStep = 128 << 10;  // of a longer part Linux reads no more than it would by itself
  for (uint64_t end = offset + size; offset < end; offset += kStep) {
    posix_fadvise(descriptor_, off_t(offset), off_t(std::min(kStep, end - offset)), POSIX_FADV_WILLNEED);
  }
}

}  // namespace arbalest
