// SPDX-License-Identifier: Apache-2.0
#include "executor/devices/open_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "base/error.h"

namespace arbalest {

void expect_open_files(int count, const std::string& what) {
  std::vector<int> opened;
  while (int(opened.size()) < count) {
    const int descriptor = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) break;
    opened.push_back(descriptor);
  }
  const std::string reason = std::strerror(errno);
  for (const int descriptor : opened) close(descriptor);
  if (int(opened.size()) == count) return;
  throw RunError(
      fmt::format("{} may need {} more open files, and found room for {}: {}; expected a higher limit on "
                  "them (ulimit -n)",
                  what, count, opened.size(), reason));
}

}  // namespace arbalest
