// SPDX-License-Identifier: Apache-2.0
#include "executor/trace/steady_state.h"

#include <algorithm>
#include <cmath>

namespace arbalest {

namespace {

struct Iteration {
  int64_t number = 0;
  int64_t tasks = 0;  // that have run it
  int64_t ended = 0;
};

// The iterations of the base clock that were recorded, in order. Memory grows with the number of spans, not with the
// numbers in them.
std::vector<Iteration> iterations_of(const Plan& plan, const std::vector<TaskSpan>& spans) {
  std::vector<Iteration> iterations;
  for (const TaskSpan& span : spans) {
    if (plan.tasks[span.task].clock == 0) iterations.push_back({span.instance, 1, span.ended});
  }
  std::sort(iterations.begin(), iterations.end(),
            [](const Iteration& a, const Iteration& b) { return a.number < b.number; });
  size_t kept = 0;
  for (const Iteration& one : iterations) {
    if (kept > 0 && iterations[kept - 1].number == one.number) {
      Iteration& same = iterations[kept - 1];
      ++same.tasks;
      same.ended = std::max(same.ended, one.ended);
    } else {
      iterations[kept++] = one;
    }
  }
  iterations.resize(kept);
  return iterations;
}

}  // namespace

SteadyState find_steady_state(const Plan& plan, const std::vector<TaskSpan>& spans, double warm_up) {
  Table<TaskId, char> runs(plan.tasks.size(), 0);
  for (const TaskSpan& span : spans) {
    if (plan.tasks[span.task].clock == 0) runs[span.task] = 1;
  }
  const int64_t tasks = std::count(runs.begin(), runs.end(), 1);
  const std::vector<Iteration> iterations = iterations_of(plan, spans);
  const auto whole = [&](const Iteration& iteration) { return iteration.tasks == tasks; };
  const auto from = std::find_if(iterations.begin(), iterations.end(), whole);
  SteadyState steady;
  if (from == iterations.end()) return steady;
  const auto to = std::find_if(iterations.rbegin(), iterations.rend(), whole);
  const auto cut = int64_t(std::ceil(warm_up * double(to->number + 1 - from->number)));
  steady.first = from->number + cut;
  steady.last = to->number - cut;
  if (steady.first >= steady.last) return steady;
  const auto ended = [&](int64_t number) {
    const auto found = std::lower_bound(iterations.begin(), iterations.end(), number,
                                        [](const Iteration& one, int64_t wanted) { return one.number < wanted; });
    return found != iterations.end() && found->number == number ? found->ended : 0;
  };
  steady.begin = ended(steady.first);
  steady.end = ended(steady.last);
  steady.iteration_ns = double(steady.end - steady.begin) / double(steady.last - steady.first);
  return steady;
}

}  // namespace arbalest
