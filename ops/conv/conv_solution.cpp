// SPDX-License-Identifier: Apache-2.0
#include "ops/conv/conv_solution.h"

#include <algorithm>

#include "ops/conv/conv_pixel_sums.h"
#include "ops/conv/few/conv_colours.h"
#include "ops/conv/few/conv_small.h"
#include "ops/conv/few/conv_thin.h"
#include "ops/conv/grouped/conv_direct.h"
#include "ops/conv/grouped/conv_group_tiles.h"
#include "ops/conv/hopper/conv_folded.h"
#include "ops/conv/hopper/conv_halo.h"
#include "ops/cuda/convolution_timer.h"

namespace arbalest {
namespace {

using Kind = ConvolutionProblem::Kind;
using Engine = ConvolutionEngine;

// Those ahead are tried first; of those that are timed, the first stands if a choice must be the same each time.
constexpr const Engine* kEngines[] = {&kDepthwiseEngine,      &kThinEngine,      &kGroupTilesEngine,
                                      &kFoldedGradientEngine, &kHaloEngine,      &kSmallEngine,
                                      &kColoursEngine,        &kPixelSumsEngine, &kPlainLoopsEngine};

Solution solve_by_plan(CudaContext& context, const ConvolutionProblem& problem) {
  Solution solution{.plan = find_convolution_plan(context, problem)};
  if (solution.found()) solution.microseconds = solution.plan->microseconds();
  return solution;
}

// Filter gradients are Float32. Few engines write that from lowered operands, and some of those do not split the long
// sum over pixels. So a lowered result that passes through the workspace is the alternative.
Solution solve_gradient_by_plan(CudaContext& context, const ConvolutionProblem& problem) {
  if (problem.output_type == problem.type) return solve_by_plan(context, problem);
  ConvolutionProblem lowered = problem;
  lowered.output_type = problem.type;
  const int64_t bytes = aligned_bytes(problem.w, problem.type);
  lowered.workspace_limit = std::max<int64_t>(0, problem.workspace_limit - bytes);
  const double widening = context.model.pass_microseconds(3 * bytes);
  const auto solve_apart = [&] {
    Solution apart = solve_by_plan(context, lowered);
    apart.lowered_bytes = bytes;
    apart.microseconds += widening;
    return apart;
  };
  // If the times of both are known already, only the faster one is made, as making it then takes most of the time.
  const double known = known_convolution_microseconds(context, problem);
  const double known_apart = known_convolution_microseconds(context, lowered);
  if (known > 0 && known_apart > 0) {
    const Solution faster = known_apart + widening < known ? solve_apart() : solve_by_plan(context, problem);
    if (faster.found()) return faster;
  }
  const Solution straight = solve_by_plan(context, problem);
  if (straight.found() && problem.deterministic) return straight;
  const Solution apart = solve_apart();
  return apart.better_than(straight) ? apart : straight;
}

Solution solve_by(const Engine& engine, CudaContext& context, const ConvolutionProblem& problem) {
  if (!engine.accepts(context.model, problem) || (problem.deterministic && !engine.is_faster(context.model, problem)))
    return {};
  const int64_t workspace = engine.workspace_bytes(problem, context.model.multiprocessors_for(problem.concurrent));
  if (workspace > problem.workspace_limit) return {};
  if (problem.deterministic) return {.engine = &engine};
  const auto run = [&](ConvolutionCall call) {
    if (problem.kind != Kind::ForwardBias) call.bias = nullptr;
    engine.run(problem, call);
  };
  const double microseconds = own_microseconds(context, engine.revision, problem, workspace, run);
  return microseconds > 0 ? Solution{.engine = &engine, .microseconds = microseconds} : Solution();
}

// The fastest of cuDNN's engines and of ours that `may` stand, or, if a choice is to be the same each time, the first
// that there is.
template <typename May>
Solution best_of(CudaContext& context, const ConvolutionProblem& problem, May may) {
  Solution best;
  for (const Engine* engine : kEngines) {
    if (engine->chosen != Engine::Chosen::Timed || !may(*engine)) continue;
    const Solution solution = solve_by(*engine, context, problem);
    if (solution.better_than(best)) best = solution;
    if (best.found() && problem.deterministic) return best;
  }
  const Solution planned =
      problem.kind == Kind::GradWeight ? solve_gradient_by_plan(context, problem) : solve_by_plan(context, problem);
  return planned.better_than(best) ? planned : best;
}

}  // namespace

int64_t Solution::workspace_bytes(const ConvolutionProblem& problem, int multiprocessors) const {
  return lowered_bytes +
         (engine != nullptr ? engine->workspace_bytes(problem, multiprocessors) : plan->workspace_bytes());
}

void Solution::run(CudaContext& context, const ConvolutionProblem& problem, const ConvolutionCall& call) const {
  if (engine != nullptr) return engine->run(problem, call);
  plan->run(context, call);
}

// The bias and Relu inside the convolution, or in one pass afterwards: whichever is faster.
Solution solve(CudaContext& context, const ConvolutionProblem& problem) {
  const bool more = problem.kind == Kind::ForwardBias || problem.relu;
  const auto adds_all = [&](const Engine& engine) { return !more || engine.adds == Engine::Adds::BiasAndRelu; };
  const Solution whole = best_of(context, problem, adds_all);
  if (!more || (whole.found() && problem.deterministic)) return whole;
  ConvolutionProblem plain = problem;
  plain.kind = Kind::Forward;
  plain.relu = false;
  Solution apart = best_of(context, plain, [](const Engine& e) { return e.adds == Engine::Adds::Nothing; });
  apart.bias_apart = true;
  apart.microseconds +=
      context.model.pass_microseconds(2 * element_count(problem.y) * int64_t(size_of(problem.output_type)));
  return apart.better_than(whole) ? apart : whole;
}

const Engine* first_engine(Engine::Chosen chosen, const DeviceModel& device, const ConvolutionProblem& problem) {
  for (const Engine* engine : kEngines) {
    if (engine->chosen == chosen && engine->accepts(device, problem)) return engine;
  }
  return nullptr;
}

int64_t aligned_bytes(const Shape& shape, DataType type) {
  return (element_count(shape) * int64_t(size_of(type)) + 255) / 256 * 256;
}

}  // namespace arbalest
