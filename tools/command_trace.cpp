// arbalest trace FILE: what a trace says, in the terminal.

#include <cstdio>

#include "executor/trace_summary.h"
#include "tools/commands.h"

namespace arbalest {

int command_trace(const TraceOptions& options) {
  SummaryOptions summary;
  summary.slowest = options.slowest;
  summary.gaps = options.gaps;
  summary.reasons = options.reasons;
  const std::string text = summarize(read_trace(options.file), summary);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return kDone;
}

}  // namespace arbalest
