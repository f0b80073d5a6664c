// SPDX-License-Identifier: Apache-2.0

// Logs read back: runs, their page and their plots.

#include "tests/fuzz/target.h"
#include "tools/report/report_page.h"
#include "tools/report/run_plots.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace arbalest;
  using namespace arbalest::fuzz;
  const std::string path = write("input.jsonl", text(data, size));
  std::vector<RunLog> runs;
  if (accepted([&] { runs = read_run_logs(path, "input"); })) {
    report_page(runs);
    accepted([&] { svg_of(accuracy_plot(runs)); });
  }
  accepted([&] { svg_of(scaling_plot({path})); });
  return 0;
}
