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
#include "tools/command/commands.h"

namespace {

using namespace arbalest;

struct Execute {
  int operator()(const Exit& exit) const {
    std::fputs(exit.text.c_str(), exit.status == kDone ? stdout : stderr);
    return exit.status;
  }
  int operator()(const RunOptions& options) const { return command_run(options); }
  int operator()(const ResumeOptions& options) const { return command_resume(options); }
  int operator()(const EvaluateOptions& options) const { return command_evaluate(options); }
  int operator()(const PredictOptions& options) const { return command_predict(options); }
  int operator()(const ExportCommandOptions& options) const { return command_export(options); }
  int operator()(const CheckOptions& options) const { return command_check(options); }
  int operator()(const PlanCommandOptions& options) const { return command_plan(options); }
  int operator()(const TraceOptions& options) const { return command_trace(options); }
  int operator()(const ViewOptions& options) const { return command_view(options); }
  int operator()(const ReportOptions& options) const { return command_report(options); }
  int operator()(const DataOptions& options) const { return command_data(options); }
  int operator()(const PackCommandOptions& options) const { return command_pack(options); }
  int operator()(const OpsOptions& options) const { return command_ops(options); }
  int operator()(const SourcesOptions& options) const { return command_sources(options); }
  int operator()(const StartOptions& options) const { return command_init(options); }
  int operator()(const ProfileOptions& options) const { return command_profile(options); }
  int operator()(const ScalingOptions& options) const { return command_bench_scaling(options); }
  int operator()(const TracingOptions& options) const { return command_bench_tracing(options); }
};

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
  try {
    const int status = std::visit(Execute{}, parse_command_line(argc, argv));
    flush_output();
    return status;
  } catch (const Error& error) {
    return report(error, int(error.code()));
  } catch (const std::exception& error) {
    return report(error, kFailed);
  }
}
