// SPDX-License-Identifier: Apache-2.0
#include "passes/program.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <utility>

#include "graph/constants.h"
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

namespace {

// The metric's function of `means`, in the type that the graph states.
double value_at(const LoopMetric& metric, const std::vector<double>& means) {
  Graph function = metric.function;
  for (size_t m = 0; m < means.size(); ++m) {
    Value& input = function.values[metric.arguments[m]];
    const bool wide = input.type.dtype == DataType::Float64;
    input.initializer = wide ? data_of(std::vector<double>{means[m]}) : data_of(std::vector<float>{float(means[m])});
  }
  for (const NodeId n : function.nodes.ids()) infer_content(function, n);
  const ValueId output = function.outputs.front();
  const auto content = content_of(function, output);
  if (!content) throw std::logic_error(fmt::format("the function of means '{}' is not computed", metric.name));
  const auto read = [&](auto value) {
    std::memcpy(&value, content->data(), sizeof value);
    return double(value);
  };
  return function.values[output].type.dtype == DataType::Float64 ? read(double{}) : read(float{});
}

}  // namespace

double mean_of(const LoopMetric& metric, const std::vector<double>& sums) {
  std::vector<double> means;
  for (const LoopMean& mean : metric.means) {
    const double weight = sums[mean.weight];
    if (weight == 0) return std::numeric_limits<double>::quiet_NaN();
    // Kernels round the share of a batch, so the count of samples is recovered, and is then divided once.
    means.push_back((mean.counts ? std::round(sums[mean.sum]) : sums[mean.sum]) / weight);
  }
  return metric.function.nodes.empty() ? means.at(0) : value_at(metric, means);
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
