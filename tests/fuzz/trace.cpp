// SPDX-License-Identifier: Apache-2.0

// Traces: all reports of one, in the terminal, as JSON and as a page.

#include "executor/trace/trace_summary.h"
#include "executor/trace/what_if.h"
#include "tests/fuzz/target.h"
#include "tools/view/trace_json.h"
#include "tools/view/viewer_data.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace arbalest;
  using namespace arbalest::fuzz;
  const std::string path = write("input.trace.json", text(data, size));
  TraceFile trace;
  if (!accepted([&] { trace = read_trace(path); })) return 0;
  for (const bool each : {false, true}) {
    SummaryOptions options;
    options.each = each;
    accepted([&] { expect_printable(summarize(trace, options)); });
  }
  for (const char* change : {"prefetch.depth=2", "source*2", "learners-1", "*step*0.5"}) {
    accepted([&] { expect_printable(predict(trace, {parse_what_if(change)})); });
  }
  accepted([&] { trace_json(trace, analyze(trace, {}), what_pays(trace)); });
  accepted([&] { viewer_data(trace, "input"); });
  return 0;
}
