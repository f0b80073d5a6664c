#include "passes/program.h"

#include <algorithm>
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

double mean_of(const LoopMetric& metric, const std::vector<double>& sums) {
  const double weight = sums[metric.weight];
  return weight == 0 && sums[0] > 0 ? 0 : sums[metric.sum] / weight;
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
