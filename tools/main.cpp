#include <cstdio>
#include <exception>

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
};

int report(const std::exception& error, int status) {
  std::fprintf(stderr, "arbalest: %s\n", error.what());
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return std::visit(Execute{}, parse_command_line(argc, argv));
  } catch (const GraphError& error) {
    return report(error, kWrong);
  } catch (const std::exception& error) {
    return report(error, kFailed);
  }
}
