#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>

#include "graph/error.h"
#include "tools/commands.h"

namespace {

using namespace arbalest;

struct Execute {
  int operator()(const Exit& exit) const {
    std::fputs(exit.text.c_str(), exit.status == kDone ? stdout : stderr);
    return exit.status;
  }
  int operator()(const RunOptions& options) const { return command_run(options); }
  int operator()(const CheckOptions& options) const { return command_check(options); }
  int operator()(const PlanCommandOptions& options) const { return command_plan(options); }
  int operator()(const TraceOptions& options) const { return command_trace(options); }
  int operator()(const OpsOptions& options) const { return command_ops(options); }
  int operator()(const ScalingOptions& options) const { return command_bench_scaling(options); }
};

int report(const std::exception& error, int status) {
  std::fprintf(stderr, "arbalest: %s\n", error.what());
  return status;
}

// GNU OpenMP's threads spin at every barrier for milliseconds, unless told otherwise before the library is loaded; on a
// machine whose cores are shared with anything else, reading data included, that costs a factor of ten.
void wait_without_spinning(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") || std::getenv("GOMP_SPINCOUNT")) return;
  setenv("OMP_WAIT_POLICY", "passive", 1);
  std::error_code error;  // by its path: of "/proc/self/exe" the process would be called "exe"
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) execv(program.c_str(), argv);  // where it fails, the run is only slower
}

void flush_output() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  throw RunError(fmt::format("standard output: cannot write: {}", std::strerror(errno != 0 ? errno : EIO)));
}

}  // namespace

int main(int argc, char** argv) {
  wait_without_spinning(argv);
  try {
    const int status = std::visit(Execute{}, parse_command_line(argc, argv));
    flush_output();
    return status;
  } catch (const GraphError& error) {
    return report(error, kWrong);
  } catch (const std::exception& error) {
    return report(error, kFailed);
  }
}
