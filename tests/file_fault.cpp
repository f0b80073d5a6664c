// SPDX-License-Identifier: Apache-2.0

// A library for LD_PRELOAD that makes files fail: FILE_FAULT is "KIND:TEXT", or several with a semicolon between them,
// and concerns files whose path has the text in it.
//   stall:TEXT    reading never ends
//   unread:TEXT   reading is an error (EIO)
//   full:TEXT     writing finds no space (ENOSPC)
//   broken:TEXT   writing is an error (EIO)
//   unsynced:TEXT fsync is an error (EIO)
//   kept:TEXT     renaming to such a path is an error (EACCES)
//   clock:N       no file: the time of day jumps by N seconds once the process is a second old
// With FILE_FAULT_AFTER=N the first N such calls succeed.

#include <dlfcn.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

template <typename Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

bool concerns(std::string_view kind, std::string_view path) {
  static std::atomic<long> calls{0};
  static const char* const text = std::getenv("FILE_FAULT");
  static const char* const after = std::getenv("FILE_FAULT_AFTER");
  for (std::string_view rest = text != nullptr ? text : ""; !rest.empty();) {
    const std::string_view fault = rest.substr(0, rest.find(';'));
    rest.remove_prefix(std::min(rest.size(), fault.size() + 1));
    const size_t colon = fault.find(':');
    if (colon == fault.npos || fault.substr(0, colon) != kind) continue;
    if (path.find(fault.substr(colon + 1)) == path.npos) continue;
    if (calls.fetch_add(1) >= (after != nullptr ? std::atol(after) : 0)) return true;
  }
  return false;
}

bool concerns(std::string_view kind, int descriptor) {
  if (std::getenv("FILE_FAULT") == nullptr) return false;
  char link[64], path[PATH_MAX];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  const ssize_t length = readlink(link, path, sizeof path);
  return length > 0 && concerns(kind, std::string_view(path, size_t(length)));
}

// Whether reading fails; does not return if reading never ends.
bool read_fails(int descriptor) {
  while (concerns("stall", descriptor)) sleep(1000);
  return concerns("unread", descriptor);
}

// The error number with which writing fails; 0 if it does not.
int write_error(int descriptor) {
  return concerns("full", descriptor) ? ENOSPC : concerns("broken", descriptor) ? EIO : 0;
}

time_t jump(const timespec& now) {
  static const char* const text = std::getenv("FILE_FAULT");
  static const std::string_view fault = text != nullptr ? text : "";
  static const time_t began = now.tv_sec;
  return fault.starts_with("clock:") && now.tv_sec > began + 1 ? std::atol(text + 6) : 0;
}

ssize_t failed(int error) {
  errno = error;
  return -1;
}

}  // namespace

extern "C" {

ssize_t read(int descriptor, void* to, size_t count) {
  static const auto real = next<ssize_t (*)(int, void*, size_t)>("read");
  return read_fails(descriptor) ? failed(EIO) : real(descriptor, to, count);
}

ssize_t pread(int descriptor, void* to, size_t count, off_t offset) {
  static const auto real = next<ssize_t (*)(int, void*, size_t, off_t)>("pread");
  return read_fails(descriptor) ? failed(EIO) : real(descriptor, to, count, offset);
}

ssize_t write(int descriptor, const void* from, size_t count) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t)>("write");
  const int error = write_error(descriptor);
  return error != 0 ? failed(error) : real(descriptor, from, count);
}

ssize_t writev(int descriptor, const iovec* from, int count) {
  static const auto real = next<ssize_t (*)(int, const iovec*, int)>("writev");
  const int error = write_error(descriptor);
  return error != 0 ? failed(error) : real(descriptor, from, count);
}

// The C library's own calls of write() cannot be taken over.
size_t fwrite(const void* from, size_t size, size_t count, FILE* out) {
  static const auto real = next<size_t (*)(const void*, size_t, size_t, FILE*)>("fwrite");
  const int error = write_error(fileno(out));
  return error != 0 ? (failed(error), size_t{0}) : real(from, size, count, out);
}

int clock_gettime(clockid_t clock, timespec* now) {
  static const auto real = next<int (*)(clockid_t, timespec*)>("clock_gettime");
  const int status = real(clock, now);
  if (clock == CLOCK_REALTIME) now->tv_sec += jump(*now);
  return status;
}

int fsync(int descriptor) {
  static const auto real = next<int (*)(int)>("fsync");
  return concerns("unsynced", descriptor) ? int(failed(EIO)) : real(descriptor);
}

int rename(const char* from, const char* to) {
  static const auto real = next<int (*)(const char*, const char*)>("rename");
  return concerns("kept", std::string_view(to)) ? int(failed(EACCES)) : real(from, to);
}
}
