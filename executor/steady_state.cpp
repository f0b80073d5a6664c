#include "executor/steady_state.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace arbalest {

SteadyState find_steady_state(const Plan& plan, const std::vector<TaskSpan>& spans, double warm_up) {
  int64_t lowest = std::numeric_limits<int64_t>::max(), highest = -1;
  std::vector<char> runs(plan.tasks.size(), 0);
  for (const TaskSpan& span : spans) {
    if (plan.tasks[size_t(span.task)].clock != 0) continue;
    lowest = std::min(lowest, span.instance);
    highest = std::max(highest, span.instance);
    runs[size_t(span.task)] = 1;
  }
  SteadyState steady;
  if (highest < lowest) return steady;
  std::vector<int64_t> missing(size_t(highest - lowest + 1), std::count(runs.begin(), runs.end(), 1));
  std::vector<int64_t> ended(missing.size(), 0);
  for (const TaskSpan& span : spans) {
    if (plan.tasks[size_t(span.task)].clock != 0) continue;
    const auto i = size_t(span.instance - lowest);
    --missing[i];
    ended[i] = std::max(ended[i], span.ended);
  }
  const auto whole = [](int64_t tasks) { return tasks == 0; };
  const auto from = std::find_if(missing.begin(), missing.end(), whole);
  const auto to = std::find_if(missing.rbegin(), missing.rend(), whole).base();  // beyond the last
  if (from >= to) return steady;
  const auto cut = int64_t(std::ceil(warm_up * double(to - from)));
  const int64_t first = from - missing.begin() + cut, last = to - missing.begin() - 1 - cut;
  steady.first = lowest + first;
  steady.last = lowest + last;
  if (first >= last) return steady;
  steady.begin = ended[size_t(first)];
  steady.end = ended[size_t(last)];
  steady.iteration_ns = double(steady.end - steady.begin) / double(last - first);
  return steady;
}

}  // namespace arbalest
