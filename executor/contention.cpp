#include "executor/contention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "executor/trace_intervals.h"

namespace arbalest {
namespace {

// For how long 0, 1, 2, … of a device's compute lanes were busy, up to any moment.
class BusyLanes {
 public:
  BusyLanes(const TraceFile& trace, int32_t device) {
    const std::vector<Intervals> busy = busy_times(trace.plan, trace.tasks);
    std::map<int64_t, int> changes;
    for (size_t lane = 0; lane < busy.size(); ++lane) {
      const Lane& known = trace.plan.lanes[lane];
      if (known.kind != Lane::Kind::Compute || known.device != device) continue;
      ++lanes_;
      for (const Interval& interval : busy[lane]) {
        ++changes[interval.from];
        --changes[interval.to];
      }
    }
    std::vector<int64_t> sums(lanes_ + 1, 0);
    int level = 0;
    for (const auto& [time, change] : changes) {
      if (!times_.empty()) sums[size_t(level)] += time - times_.back();
      level += change;
      times_.push_back(time);
      levels_.push_back(level);
      before_.insert(before_.end(), sums.begin(), sums.end());
    }
  }

  size_t lanes() const { return lanes_; }

  // Of a stretch during which one of them was busy throughout: the time with n others busy, by n.
  std::vector<double> others(int64_t from, int64_t to) const {
    std::vector<double> sums(lanes_, 0);
    for (size_t n = 0; n < lanes_; ++n) sums[n] = double(until(to, n + 1) - until(from, n + 1));
    return sums;
  }

 private:
  int64_t until(int64_t time, size_t level) const {
    const auto next = std::upper_bound(times_.begin(), times_.end(), time) - times_.begin();
    if (next == 0) return 0;
    const auto last = size_t(next - 1);
    return before_[last * (lanes_ + 1) + level] + (size_t(levels_[last]) == level ? time - times_[last] : 0);
  }

  size_t lanes_ = 0;
  std::vector<int64_t> times_;   // at which the number of busy lanes changes
  std::vector<int> levels_;      // what it is from then on
  std::vector<int64_t> before_;  // sums by level at each of the times
};

// One instance: the time that it ran beside n others, by n.
using Beside = std::vector<double>;

double duration(const Beside& beside) {
  double sum = 0;
  for (const double time : beside) sum += time;
  return sum;
}

// What the instance would have taken alone.
double work(const Beside& beside, double slowdown) {
  double sum = 0;
  for (size_t n = 0; n < beside.size(); ++n) sum += beside[n] / (1 + slowdown * double(n));
  return sum;
}

double mean_others(const Beside& beside) {
  double sum = 0;
  for (size_t n = 0; n < beside.size(); ++n) sum += beside[n] * double(n);
  return sum / duration(beside);
}

struct Moments {
  double mean = 0, squares = 0;  // Σ (x − mean)²
};

template <typename Measure>
Moments moments(const std::vector<Beside>& instances, Measure measure) {
  Moments result;
  for (const Beside& instance : instances) result.mean += measure(instance) / double(instances.size());
  for (const Beside& instance : instances) result.squares += std::pow(measure(instance) - result.mean, 2);
  return result;
}

// By task, in the steady state. Those that took twice the median were interrupted by something else.
std::map<TaskId, std::vector<Beside>> gather(const TraceFile& trace, const SteadyState& steady, int32_t device) {
  const Plan& plan = trace.plan;
  const BusyLanes busy(trace, device);
  std::map<TaskId, std::vector<Beside>> tasks;
  if (busy.lanes() < 2) return tasks;
  for (const TaskSpan& span : trace.tasks) {
    const Lane& lane = plan.lanes[size_t(plan.tasks[size_t(span.task)].lane)];
    const bool here = lane.kind == Lane::Kind::Compute && lane.device == device;
    if (!here || !steady.holds(plan, span) || span.ended == span.started) continue;
    tasks[span.task].push_back(busy.others(span.started, span.ended));
  }
  for (auto& [task, instances] : tasks) {
    const auto middle = instances.begin() + std::ptrdiff_t(instances.size() / 2);
    std::nth_element(instances.begin(), middle, instances.end(),
                     [](const Beside& a, const Beside& b) { return duration(a) < duration(b); });
    const double limit = 2 * duration(*middle);
    std::erase_if(instances, [&](const Beside& instance) { return duration(instance) > limit; });
  }
  return tasks;
}

}  // namespace

Contention fit_contention(const TraceFile& trace, const SteadyState& steady, int32_t device) {
  constexpr double kLeastSpread = 0.1;  // standard deviation of the others, below which nothing can be told
  constexpr int kSteps = 100;           // c is searched in hundredths
  Contention contention;
  const std::map<TaskId, std::vector<Beside>> tasks = gather(trace, steady, device);
  double count = 0, spread = 0;
  for (const auto& [task, instances] : tasks) {
    count += double(instances.size());
    spread += moments(instances, mean_others).squares;
  }
  if (count > 0 && std::sqrt(spread / count) >= kLeastSpread) {
    // Squares of what the instances' work differs by, relative to its mean.
    const auto error = [&tasks = tasks](double slowdown) {
      double sum = 0;
      for (const auto& [task, instances] : tasks) {
        const Moments found = moments(instances, [&](const Beside& beside) { return work(beside, slowdown); });
        sum += found.squares / (found.mean * found.mean);
      }
      return sum;
    };
    contention.fitted = true;
    double least = error(contention.slowdown);
    for (int step = 0; step < kSteps; ++step) {
      const double slowdown = double(step) / kSteps, here = error(slowdown);
      if (here >= least) continue;
      least = here;
      contention.slowdown = slowdown;
    }
  }
  for (const auto& [task, instances] : tasks) {
    const auto alone = [&](const Beside& beside) { return work(beside, contention.slowdown); };
    contention.alone[task] = moments(instances, alone).mean / moments(instances, duration).mean;
  }
  return contention;
}

}  // namespace arbalest
