// SPDX-License-Identifier: Apache-2.0
#include "passes/program.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "passes/pipeline.h"

namespace arbalest {

const Loop* Program::find(LoopRole role) const {
  const auto found = std::find_if(loops.begin(), loops.end(), [&](const Loop& loop) { return loop.role == role; });
  return found == loops.end() ? nullptr : &*found;
}

Loop* Program::find(LoopRole role) {
  return const_cast<Loop*>(std::as_const(*this).find(role));
}

bool pads_evenly(int64_t samples, int64_t batch) {
  const int64_t rest = samples % batch;
  return rest == 0 || batch % rest == 0;
}

double mean_of(const LoopMetric& metric, const std::vector<double>& sums) {
  const double weight = sums[metric.weight];
  return weight == 0 ? std::numeric_limits<double>::quiet_NaN() : sums[metric.sum] / weight;
}

Program make_program(Graph graph, const ProgramOptions& options) {
  for (const std::string& name : options.without) check_optional(name);
  ProgramNotes notes;
  Program program = read_rules(std::move(graph), notes);
  program.skips = options.skips;
  for (const Pass& pass : passes()) {
    if (pass.on == Pass::On::Plan) continue;
    run_pass(pass, {program, options, notes});
    if (options.after) options.after(pass.name, program.training().graph);
  }
  return program;
}

}  // namespace arbalest
