// arbalest trace FILE: what a trace says, in the terminal, and what would change if.

#include <cstdio>

#include "executor/trace/trace_summary.h"
#include "tools/command/commands.h"

namespace arbalest {

int command_trace(const TraceOptions& options) {
  SummaryOptions summary;
  summary.slowest = options.slowest;
  summary.each = options.each;
  summary.gaps = options.gaps;
  summary.reasons = options.reasons;
  const TraceFile trace = read_trace(options.file);
  std::string text = summarize(trace, summary);
  if (!options.what_if.empty()) text += '\n' + predict(trace, options.what_if);
  std::fwrite(text.data(), 1, text.size(), stdout);
  return kDone;
}

}  // namespace arbalest
