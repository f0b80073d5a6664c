// SPDX-License-Identifier: Apache-2.0
#include "tools/watch/event_stream.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/files/output_lock.h"
#include "base/process.h"

namespace arbalest {
namespace {

// −1 and errno if the file cannot be opened, or is write-protected, which opening it may ignore; ENXIO: a pipe that
// nobody reads.
int open_for_events(const std::string& path) {
  struct stat there = {};
  if (stat(path.c_str(), &there) == 0 && S_ISREG(there.st_mode) && (there.st_mode & 0222u) == 0) {
    errno = EACCES;
    return -1;
  }
  using std::chrono::steady_clock, std::chrono::seconds, std::chrono::milliseconds;
  constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  const auto until = steady_clock::now() + seconds(5);
  for (;;) {
    const int descriptor = open(path.c_str(), kFlags, 0666);
    if (descriptor >= 0 || errno != ENXIO || steady_clock::now() >= until) return descriptor;
    std::this_thread::sleep_for(milliseconds(20));
  }
}

}  // namespace

EventStream::EventStream(const std::string& path, std::string what, std::string then)
    : path_(path), what_(std::move(what)), then_(std::move(then)), descriptor_(open_for_events(path)) {
  if (descriptor_ < 0) {
    throw RunError(fmt::format("{}: cannot be written: {}", path,
                               errno == ENXIO ? "it is a pipe that nobody reads" : std::strerror(errno)));
  }
  struct stat status = {};
  regular_ = fstat(descriptor_, &status) == 0 && S_ISREG(status.st_mode);
  struct stat console = {};
  if (regular_ && fstat(STDERR_FILENO, &console) == 0 && console.st_dev == status.st_dev &&
      console.st_ino == status.st_ino) {
    close(descriptor_);
    throw RunError(
        fmt::format("{}: standard error goes to that file, and its lines would come into the {}; expected "
                    "a file of its own",
                    path, what_));
  }
  if (!regular_ || lock_at_once(descriptor_)) return;
  const std::string holder = holder_of_lock(descriptor_);
  close(descriptor_);
  throw OutputInUse(path, what_, holder);
}

EventStream::~EventStream() {
  close(descriptor_);
}

bool EventStream::empty() const {
  struct stat status = {};
  return !regular_ || (fstat(descriptor_, &status) == 0 && status.st_size == 0);
}

void EventStream::cut(int64_t bytes) {
  if (failed_ || !regular_ || ftruncate(descriptor_, bytes) == 0) return;
  warn(fmt::format("{}: cannot be cut: {}; the {} repeats what it holds", path_, std::strerror(errno), what_));
}

void EventStream::write(std::string_view bytes) {
  if (failed_ || put(bytes)) return;
  warn(fmt::format("{}: cannot be written: {}; the {} ends here, {}", path_, std::strerror(errno), what_, then_));
  failed_ = true;
}

// False and errno if not all of it was written.
bool EventStream::put(std::string_view bytes) const {
  constexpr int kLongest = 10'000;  // ms
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(size_t(written));
      continue;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN) return false;
    pollfd room = {descriptor_, POLLOUT, 0};
    if (poll(&room, 1, kLongest) == 0) {
      errno = ETIMEDOUT;
      return false;
    }
  }
  return true;
}

int64_t end_of_line(const std::string& path, const std::function<bool(const std::string&)>& wanted) {
  std::ifstream file(path, std::ios::binary);
  int64_t at = 0, found = -1;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    at += int64_t(line.size()) + 1;
    if (wanted(line)) found = at;
  }
  return found;
}

}  // namespace arbalest
