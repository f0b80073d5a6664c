// SPDX-License-Identifier: Apache-2.0
#include "base/files/atomic_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <random>

#include "base/error.h"
#include "base/files/file.h"

namespace arbalest {

namespace fs = std::filesystem;

namespace {

constexpr unsigned kPermissions = 07777;

fs::path folder_of(const fs::path& path) {
  return path.parent_path().empty() ? fs::path(".") : path.parent_path();
}

// The permissions of the file that is to be replaced; 0 if there is none.
unsigned replaceable_mode(const fs::path& target) {
  struct stat status = {};
  if (stat(target.c_str(), &status) != 0) return 0;
  if (!S_ISREG(status.st_mode)) {
    throw RunError(fmt::format("{}: cannot be replaced: it is {}, expected a regular file", target.string(),
                               S_ISDIR(status.st_mode) ? "a folder" : "a special file"));
  }
  if ((status.st_mode & 0222u) == 0 || access(target.c_str(), W_OK) != 0) {
    throw RunError(fmt::format("{}: cannot be replaced: the file is read-only (mode {:04o})", target.string(),
                               status.st_mode & kPermissions));
  }
  return status.st_mode & kPermissions;
}

// The beginning of the names of temporary files for the target: short enough for every file system, and still naming
// the target.
std::string temporary_stem(const fs::path& target) {
  constexpr size_t kLongestStem = 100;
  return fmt::format(".{}.tmp-", target.filename().string().substr(0, kLongestStem));
}

constexpr size_t kNumberDigits = 16;

std::string temporary_name(const fs::path& target) {
  return (folder_of(target) / (temporary_stem(target) + unforeseen_digits())).string();
}

// Takes the lock on a temporary file. Its writer holds this lock until the process ends, so a file without a lock was
// left by a killed process. On file systems without locks the call fails, and such files stay.
bool take_lock(int descriptor) {
  return flock(descriptor, LOCK_EX | LOCK_NB) == 0;
}

// Locks a file just made. True if another process holds the lock because it took the file for abandoned; that never
// happens on file systems without locks.
bool locked_by_another(int descriptor) {
  return !take_lock(descriptor) && errno == EWOULDBLOCK;
}

bool is_linked(int descriptor) {
  struct stat status = {};
  return fstat(descriptor, &status) == 0 && status.st_nlink > 0;
}

void remove_if_abandoned(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) return;
  struct stat status = {};
  const bool own = fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == geteuid();
  if (own && take_lock(descriptor)) unlink(path.c_str());
  close(descriptor);
}

}  // namespace

std::string unforeseen_digits() {
  std::random_device random;
  return fmt::format("{:0{}x}", uint64_t(random()) << 32 | random(), kNumberDigits);
}

fs::path output_target(const fs::path& path) {
  constexpr int kMostLinks = 40;  // as the kernel follows
  std::error_code error;
  fs::path target = path;
  for (int links = 0; fs::is_symlink(target, error); ++links) {
    if (links == kMostLinks) {
      throw RunError(fmt::format("{}: cannot be replaced: it is a symbolic link that leads nowhere", path.string()));
    }
    target = target.parent_path() / fs::read_symlink(target, error);  // an absolute one stands for itself
  }
  return target;
}

void remove_abandoned(const fs::path& path) {
  const std::string stem = temporary_stem(path);
  const fs::path folder = folder_of(path);
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(opendir(folder.c_str()), closedir);
  if (!entries) return;
  while (const dirent* entry = readdir(entries.get())) {
    const std::string_view name = entry->d_name;
    const bool temporary = name.size() == stem.size() + kNumberDigits && name.starts_with(stem) &&
                           name.find_first_not_of("0123456789abcdef", stem.size()) == name.npos;
    if (temporary) remove_if_abandoned((folder / name).string());
  }
}

AtomicFile::AtomicFile(const fs::path& path) : target_(output_target(path)) {
  constexpr int kAttempts = 100;
  if (std::error_code error; fs::is_character_file(target_, error)) {
    descriptor_ = open(target_.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC);
    if (descriptor_ < 0) fail_file("opened", target_);
    return;
  }
  mode_ = replaceable_mode(target_);
  remove_abandoned(target_);
  for (int attempt = 0; descriptor_ < 0; ++attempt) {
    temporary_ = temporary_name(target_);
    // The replacement of a private file is private from the start; commit() gives it the old file's permissions.
    const mode_t mode = mode_ != 0 ? 0600 : 0666;
    descriptor_ = open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (descriptor_ < 0) {
      if (errno == EEXIST && attempt < kAttempts) continue;
      temporary_.clear();
      fail_file("created", target_);
    }
    const bool taken = locked_by_another(descriptor_) || !is_linked(descriptor_);
    if (!taken || attempt >= kAttempts) continue;
    close(descriptor_);  // between the two, another process took it for an abandoned one
    descriptor_ = -1;
  }
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

void AtomicFile::write(std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_file("written", target_);
    bytes = bytes.subspan(size_t(written));
  }
}

void AtomicFile::write(std::string_view text) {
  write(std::span(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
}

void AtomicFile::commit() {
  if (temporary_.empty()) return;
  if (mode_ != 0 && fchmod(descriptor_, mode_) != 0) fail_file("given its permissions", target_);
  if (fsync(descriptor_) != 0) fail_file("flushed", target_);
  const int held = dup(descriptor_);  // its lock, until the file has its name
  const int descriptor = descriptor_;
  descriptor_ = held;
  if (close(descriptor) != 0) fail_file("closed", target_);
  if (rename(temporary_.c_str(), target_.c_str()) != 0) fail_file("renamed", target_);
  if (held >= 0) close(held);
  descriptor_ = -1;
  temporary_.clear();
  // The new name is durable once its folder is flushed. Some file systems cannot do that; the file is complete then
  // too.
  if (const int folder = open(folder_of(target_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); folder >= 0) {
    fsync(folder);
    close(folder);
  }
}

}  // namespace arbalest
