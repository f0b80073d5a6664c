// SPDX-License-Identifier: Apache-2.0
#include "executor/devices/open_files.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/number.h"

namespace arbalest {

void expect_open_files(int count, const std::string& what) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  rlim_t open = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator each("/proc/self/fd", error), end; !error && each != end;
       each.increment(error)) {
    open += read_number<rlim_t>(each->path().filename().string()).value_or(0) < limit.rlim_cur;
  }
  if (error == std::errc::no_such_file_or_directory) return;  // nothing tells how many there are
  // The folder itself was one of them. If it could not be opened, there is room for none.
  const rlim_t room = open == 0 ? 0 : limit.rlim_cur - open + 1;
  if (room >= rlim_t(count)) return;
  throw RunError(
      fmt::format("{} may need {} more open files, and found room for {}: {}; expected a higher limit on "
                  "them (ulimit -n)",
                  what, count, room, std::strerror(EMFILE)));
}

}  // namespace arbalest
