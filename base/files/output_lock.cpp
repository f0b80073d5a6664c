// SPDX-License-Identifier: Apache-2.0
#include "base/files/output_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <fstream>
#include <utility>

#include "base/files/atomic_file.h"
#include "base/files/file.h"

namespace arbalest {

namespace fs = std::filesystem;

namespace {

// The lock file's name, short enough for every file system. A checksum distinguishes names that are cut.
std::string lock_name(const std::string& name) {
  constexpr size_t kLongest = 100;
  if (name.size() <= kLongest) return fmt::format(".{}.lock", name);
  const auto sum = crc32_z(0, reinterpret_cast<const Bytef*>(name.data()), name.size());
  return fmt::format(".{}.{:08x}.lock", name.substr(0, kLongest), sum);
}

// Opens the lock file, or makes it. A file that another user's process left in a shared folder may be opened for
// reading but not made.
int open_lock(const fs::path& file) {
  constexpr int kFlags = O_NOFOLLOW | O_CLOEXEC;
  const int descriptor = open(file.c_str(), O_RDWR | O_CREAT | kFlags, 0666);
  return descriptor < 0 && errno == EACCES ? open(file.c_str(), O_RDONLY | kFlags) : descriptor;
}

// Whether the file still has its name: the process that had the lock before removes it.
bool has_name(int descriptor, const fs::path& file) {
  struct stat open = {}, named = {};
  return fstat(descriptor, &open) == 0 && lstat(file.c_str(), &named) == 0 && open.st_ino == named.st_ino &&
         open.st_dev == named.st_dev;
}

}  // namespace

bool lock_at_once(int descriptor) {
  return flock(descriptor, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

// Lines of /proc/locks: "1: FLOCK  ADVISORY  WRITE 4711 08:01:131 0 EOF".
std::string holder_of_lock(int descriptor) {
  struct stat status = {};
  std::ifstream locks("/proc/locks");
  if (fstat(descriptor, &status) == 0) {
    const std::string file = fmt::format("{:02x}:{:02x}:{}", major(status.st_dev), minor(status.st_dev), status.st_ino);
    std::string number, kind, advisory, access, process, place, rest;
    while (locks >> number >> kind >> advisory >> access >> process >> place && std::getline(locks, rest)) {
      if (kind == "FLOCK" && place == file && process[0] != '-' && process != "0") return "process " + process;
    }
  }
  return "another process";
}

OutputInUse::OutputInUse(const std::string& path, const std::string& what, std::string holder)
    : RunError(fmt::format("{}: {} writes this {}", path, holder, what)), holder_(std::move(holder)) {}

OutputLock::OutputLock(const fs::path& path) {
  const fs::path target = output_target(path);
  std::error_code error;
  if (fs::is_character_file(target, error)) return;
  file_ = fs::absolute(target).parent_path() / lock_name(target.filename().string());
  // Some file systems state other numbers for an open file than for its name.
  constexpr int kMostTries = 100;
  for (int tries = 1;; ++tries) {
    descriptor_ = open_lock(file_);
    if (descriptor_ < 0) fail_file("created", file_);
    if (!lock_at_once(descriptor_)) {
      const std::string holder = holder_of_lock(descriptor_);
      close(descriptor_);
      throw OutputInUse(path, "file", holder);
    }
    if (has_name(descriptor_, file_) || tries == kMostTries) return;
    close(descriptor_);
  }
}

OutputLock::OutputLock(OutputLock&& other) noexcept
    : file_(std::move(other.file_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

OutputLock::~OutputLock() {
  if (descriptor_ < 0) return;
  unlink(file_.c_str());  // while the lock is held: nobody else's
  close(descriptor_);
}

}  // namespace arbalest
