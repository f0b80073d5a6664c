// SPDX-License-Identifier: Apache-2.0

// Takes the descriptors 0, 1 and 2 before a program opens anything.

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <initializer_list>

namespace {

// A program may be started with a standard stream closed: 2>&-, or by a daemon. The next file that it opened would get
// that number, and text meant for the terminal would land in a log or in weights. A descriptor that can be neither read
// nor written takes its place, so that the stream fails as a closed one does. The library does so when it is loaded.
[[maybe_unused]] const bool occupied = [] {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    if (open("/", O_PATH | O_DIRECTORY) != stream) return false;  // the lowest number that is free
  }
  return true;
}();

}  // namespace
