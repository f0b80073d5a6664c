// SPDX-License-Identifier: Apache-2.0

// arbalest bench compare FILE FILE: whether the results of one file are worse than those of another.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/error.h"
#include "tools/command/commands.h"
#include "tools/experiment/answer/compare.h"
#include "tools/experiment/answer/table.h"
#include "tools/watch/json_lines.h"

namespace arbalest {

int command_bench_compare(const BenchCompareOptions& options) {
  std::vector<std::vector<TrialResult>> sides;
  for (const std::string& file : options.files) {
    std::error_code unknown;
    if (!std::filesystem::exists(file, unknown)) throw GraphError(fmt::format("{}: there is no such file", file));
    try {
      sides.push_back(told_results(file));
    } catch (const RunError& error) {
      throw GraphError(error.what());
    }
    if (sides.back().empty()) throw GraphError(fmt::format("{}: has no results of a bench", file));
  }
  const bool trained = std::any_of(sides[0].begin(), sides[0].end(), [](const TrialResult& trial) {
    return trial.measure == Measure::Accuracy && trial.error.empty();
  });
  if (!options.targets.empty() && !trained) {
    throw GraphError(
        fmt::format("--target {:g}: {} has no training run that could meet it; expected results of a file "
                    "with [accuracy]",
                    options.targets.front(), options.files[0]));
  }
  const ResultComparison found = compare(sides[0], sides[1], options.threshold, options.targets);
  std::fputs(print_tables({found.table}, options.format).c_str(), stdout);
  if (found.judged == 0) {
    throw GraphError(
        fmt::format("{}, {}: no row has {} repetitions on both sides, so that none can ever be worse; expected "
                    "[throughput] repetitions or [accuracy] seeds of {} or more",
                    options.files[0], options.files[1], kFewest, kFewest));
  }
  return found.worse + found.missing == 0 ? kDone : kFailed;
}

}  // namespace arbalest
