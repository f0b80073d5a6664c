// SPDX-License-Identifier: Apache-2.0
#include <execinfo.h>
#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>

#include "base/error.h"
#include "base/plain_message.h"
#include "base/process.h"
#include "base/setting.h"
#include "tools/command/commands.h"
#include "tools/command/own_variables.h"

namespace {

using namespace arbalest;

int report(const std::exception& error, int status) {
  warn(plain_message(error));
  return status;
}

// Loads early the library by which threads end. The C library loads it when the first thread ends, and aborts if there
// is no memory for it then.
void load_unwinding() {
  void* here = nullptr;
  backtrace(&here, 1);
}

// Ignores SIGXFSZ: a write beyond the limit on file sizes (ulimit -f) then fails instead of ending the process. The
// failure is reported, and the partial file removed.
void let_large_files_fail() {
  std::signal(SIGXFSZ, SIG_IGN);
}

// Lets NCCL connect GPUs before training starts. Otherwise the first collective of each kind does it: it takes memory
// that nothing has planned, and waits for devices whose part may never come. What the user has set stays.
void connect_gpus_early() {
  set_own_variable("NCCL_RUNTIME_CONNECT", "0");
}

void flush_output() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  // The reason for an earlier failure is not known any more.
  throw RunError(errno == 0 ? std::string("standard output: not all of it could be written")
                            : fmt::format("standard output: cannot be written: {}", std::strerror(errno)));
}

}  // namespace

int main(int argc, char** argv) {
  load_unwinding();
  let_large_files_fail();
  connect_gpus_early();
  set_setting_namer(name_option);
  try {
    const int status = parse_command_line(argc, argv).run();
    flush_output();
    return status;
  } catch (const Error& error) {
    return report(error, int(error.code()));
  } catch (const std::exception& error) {
    return report(error, kFailed);
  }
}
