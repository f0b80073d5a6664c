// SPDX-License-Identifier: Apache-2.0
#include "ops/conv/conv_solution.h"

#include <algorithm>

#include "ops/conv/conv_colours.h"
#include "ops/conv/conv_small.h"
#include "ops/conv/conv_thin.h"
#include "ops/conv/hopper/conv_folded.h"
#include "ops/conv/hopper/conv_halo.h"
#include "ops/cuda/tensor_map.h"
#include "ops/norm/statistics_chunks.h"

namespace arbalest {
namespace {

using Kind = ConvolutionProblem::Kind;

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
  const double widening = pass_microseconds(3 * bytes);
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

// A choice that is to be the same each time cannot rest on timings: with up to 32 channels these kernels were faster
// than plans wherever they were timed.
Solution solve_thinly(CudaContext& context, const ConvolutionProblem& problem) {
  Solution solution;
  if (!is_thin(problem) || (problem.deterministic && problem.x[1] > 32)) return solution;
  if (thin_workspace(problem, context.multiprocessors) > problem.workspace_limit) return solution;
  if (!can_run_thin(context)) return solution;
  if (!problem.deterministic) solution.microseconds = thin_microseconds(context, problem);
  if (problem.deterministic || solution.microseconds > 0) solution.own = Solution::Own::Thin;
  return solution;
}

// Solves with the kernels of conv_small.h, bias and Relu included.
Solution solve_small(CudaContext& context, const ConvolutionProblem& problem) {
  Solution solution;
  if (!is_small(problem) || is_thin(problem) || problem.deterministic || !can_run_small(context)) return solution;
  if (small_workspace(problem, context.multiprocessors) > problem.workspace_limit) return solution;
  solution.microseconds = small_microseconds(context, problem);
  if (solution.microseconds > 0) solution.own = Solution::Own::Small;
  return solution;
}

// Solves with the kernel of conv_colours.h, bias and Relu included. A choice that is to be the same each time cannot
// rest on timings: with 64 filters the kernel was faster than plans.
Solution solve_colours(CudaContext& context, const ConvolutionProblem& problem) {
  Solution solution;
  if (!is_of_colours(problem) || !can_run_colours(context)) return solution;
  if (problem.deterministic && problem.y[1] != 64) return solution;
  if (!problem.deterministic) solution.microseconds = colours_microseconds(context, problem);
  if (problem.deterministic || solution.microseconds > 0) solution.own = Solution::Own::Colours;
  return solution;
}

// The stem's filter gradient: these kernels were faster than plans wherever they were timed.
Solution solve_folded_rows(CudaContext& context, const ConvolutionProblem& problem) {
  Solution solution;
  if (problem.kind != Kind::GradWeight || !is_folded_row(problem) || !has_hopper_kernels(context.model))
    return solution;
  if (folded_gradient_workspace(problem, context.multiprocessors) > problem.workspace_limit) return solution;
  if (!problem.deterministic) solution.microseconds = folded_gradient_microseconds(context, problem);
  if (problem.deterministic || solution.microseconds > 0) solution.own = Solution::Own::FoldedRows;
  return solution;
}

// Solves with the kernel of conv_halo.h, bias and Relu included.
Solution solve_halo(CudaContext& context, const ConvolutionProblem& problem) {
  Solution solution;
  if (!is_halo(problem) || !fills_halo_tiles(problem.output_shape()) || !has_hopper_kernels(context.model))
    return solution;
  if (problem.deterministic && !is_fast_halo(problem)) return solution;
  if (!problem.deterministic) solution.microseconds = halo_microseconds(context, problem);
  if (problem.deterministic || solution.microseconds > 0) solution.own = Solution::Own::Halo;
  return solution;
}

// The fastest, or, if a choice is to be the same each time, the first that there is.
template <typename... Solvers>
Solution best_of(CudaContext& context, const ConvolutionProblem& problem, Solvers... solvers) {
  Solution best;
  const auto attempt = [&](auto solver) {
    if (best.found() && problem.deterministic) return;
    const Solution solution = solver(context, problem);
    if (solution.better_than(best)) best = solution;
  };
  (attempt(solvers), ...);
  return best;
}

}  // namespace

std::string Solution::engine() const {
  switch (own) {
    case Own::Thin: return "thin";
    case Own::Small: return "small";
    case Own::Colours: return "colours";
    case Own::FoldedRows: return "folded rows";
    case Own::Halo: return "3 x 3";
    case Own::None: break;
  }
  return plan->engine();
}

int64_t Solution::workspace_bytes(const ConvolutionProblem& problem, int multiprocessors) const {
  switch (own) {
    case Own::Thin: return lowered_bytes + thin_workspace(problem, multiprocessors);
    case Own::Small: return lowered_bytes + small_workspace(problem, multiprocessors);
    case Own::FoldedRows: return lowered_bytes + folded_gradient_workspace(problem, multiprocessors);
    case Own::Colours:
    case Own::Halo: return lowered_bytes;
    case Own::None: break;
  }
  return lowered_bytes + plan->workspace_bytes();
}

// The bias and Relu inside the convolution, or in one pass afterwards: whichever is faster.
Solution solve(CudaContext& context, const ConvolutionProblem& problem) {
  if (problem.kind == Kind::GradWeight) {
    return best_of(context, problem, solve_thinly, solve_folded_rows, solve_small, solve_gradient_by_plan);
  }
  if (problem.kind != Kind::ForwardBias && !problem.relu) {
    return best_of(context, problem, solve_thinly, solve_halo, solve_small, solve_colours, solve_by_plan);
  }
  const Solution fused = best_of(context, problem, solve_halo, solve_small, solve_colours, solve_by_plan);
  if (fused.found() && problem.deterministic) return fused;
  ConvolutionProblem plain = problem;
  plain.kind = Kind::Forward;
  plain.relu = false;
  Solution apart = best_of(context, plain, solve_thinly, solve_by_plan);
  apart.bias_apart = true;
  apart.microseconds += pass_microseconds(2 * element_count(problem.y) * int64_t(size_of(problem.output_type)));
  return apart.better_than(fused) ? apart : fused;
}

int64_t aligned_bytes(const Shape& shape, DataType type) {
  return (element_count(shape) * int64_t(size_of(type)) + 255) / 256 * 256;
}

double pass_microseconds(int64_t bytes) {
  return 2 + double(bytes) / 3.5e6;
}

}  // namespace arbalest
