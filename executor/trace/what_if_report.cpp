// SPDX-License-Identifier: Apache-2.0

// The terminal report of what_if.h.

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "executor/trace/amounts.h"
#include "executor/trace/simulate.h"
#include "executor/trace/trace_summary.h"
#include "executor/trace/what_if.h"

namespace arbalest {
namespace {

constexpr int64_t kLeastMeasured = 5;        // of the steady state
constexpr int64_t kMostIterations = 10'000;  // simulated: long enough for any pattern, short enough to wait for

class PlanPrediction {
 public:
  PlanPrediction(const TraceFile& trace, const std::vector<WhatIf>& changes)
      : trace_(trace), steady_(find_steady_state(trace.plan, trace.tasks, SummaryOptions{}.warm_up)) {
    verify(trace.plan);
    if (steady_.last - steady_.first + 1 < kLeastMeasured) {
      throw GraphError("the trace has too few iterations to tell how long one takes");
    }
    measured_ = {trace.plan, measure_costs(trace, steady_)};
    for (const WhatIf& change : changes) name_width_ = std::max(name_width_, change.text.size());
  }

  std::string text(const std::vector<WhatIf>& changes) {
    const Simulation base = simulate_for_as_long(measured_);
    line("Changes, by durations of {} recorded iterations, replayed for {}", steady_.last - steady_.first + 1,
         base.steady.last - base.steady.first + 1);
    row("measured", steady_.iteration_ns, measured_.plan, "");
    row("simulated as it is", base.steady.iteration_ns, measured_.plan,
        outcome(measured_.plan, base, batches_of(measured_.plan) * 1e9 / steady_.iteration_ns));
    for (const WhatIf& change : changes) {
      Scenario changed = measured_;
      apply(change, changed);
      const Simulation simulation = simulate_for_as_long(changed);
      row(change.text, simulation.steady.iteration_ns, changed.plan,
          outcome(changed.plan, simulation, batches_of(measured_.plan) * 1e9 / base.steady.iteration_ns));
    }
    table();
    line(
        "  The change is of batches/s: of 'simulated as it is' against 'measured', of the others against the "
        "simulation.");
    const bool fewer = std::any_of(changes.begin(), changes.end(),
                                   [](const WhatIf& change) { return change.kind == WhatIf::Kind::Learners; });
    if (fewer) contention();
    return std::move(text_);
  }

  // Predicts worlds of more or fewer devices, each of which computes as those of the trace do.
  std::string worlds(const std::vector<WorldSize>& sizes, const WorldLinks& links) {
    const auto iteration = [&](const WorldSize& size) {
      Scenario scenario = measured_;
      set_world(scenario, size, links);
      return simulate_for_as_long(scenario);
    };
    const double each = batches_of(measured_.plan) / double(measured_.plan.devices.size());
    const double alone = iteration({1, 1}).steady.iteration_ns;
    line("Worlds: durations of {} recorded iterations, with all-reduces by a model of links",
         steady_.last - steady_.first + 1);
    times_.add(steady_.iteration_ns);
    std::vector<std::string> rest;
    for (const WorldSize& size : sizes) {
      const Simulation simulation = iteration(size);
      const double ns = simulation.steady.iteration_ns, devices = double(size.hosts * size.devices);
      const auto most = std::max_element(simulation.busy.begin(), simulation.busy.end());
      times_.add(ns);
      rest.push_back(fmt::format(" {:>12.1f} {:>9.1f} %  {} {:.1f} %", each * devices * 1e9 / ns, 100 * alone / ns,
                                 measured_.plan.lanes[simulation.busy.id_of(most)].name, 100 * *most));
    }
    line("  {:<9} {:>7}  {:>17} {:>12} {:>11}  {}", "world", "devices", times_.heading(), "batches/s", "efficiency",
         "busiest lane");
    line("  {:<9} {:>7}  {:>17} {:>12.1f}", "measured", measured_.plan.devices.size(), times_.cell(0),
         batches_of(measured_.plan) * 1e9 / steady_.iteration_ns);
    for (size_t i = 0; i < sizes.size(); ++i) {
      const std::string name = fmt::format("{}x{}", sizes[i].hosts, sizes[i].devices);
      line("  {:<9} {:>7}  {:>17}{}", name, sizes[i].hosts * sizes[i].devices, times_.cell(i + 1), rest[i]);
    }
    line("  Efficiency is against as many devices without collectives. Links: within hosts {}; between hosts {}.",
         link_text(links.within), link_text(links.between));
    line("  Assumed: {}.", kLinkAssumptions);
    return std::move(text_);
  }

 private:
  static std::string link_text(const Link& link) { return link.bytes_per_second > 0 ? to_string(link) : "none"; }

  template <typename... Arguments>
  void line(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Arguments>(arguments)...);
    text_ += '\n';
  }

  // Simulates as many iterations as were recorded, so that rare tasks (reports, validation) have their share.
  Simulation simulate_for_as_long(const Scenario& scenario) const {
    SimulationOptions options;
    options.warm_up = SummaryOptions{}.warm_up;
    const double recorded = double(steady_.last - steady_.first + 1) / (1 - 2 * options.warm_up);
    options.iterations = std::min(kMostIterations, int64_t(recorded) + 1);
    return simulate(scenario.plan, scenario.costs, options);
  }

  struct Row {
    std::string name;
    double rate = 0;      // batches/s
    std::string outcome;  // and the columns after it
  };

  void row(const std::string& name, double iteration_ns, const Plan& plan, const std::string& outcome) {
    times_.add(iteration_ns);
    rows_.push_back({name, batches_of(plan) * 1e9 / iteration_ns, outcome});
  }

  void table() {
    line("  {:<{}}  {:>17} {:>12} {:>9}  {}", "", name_width_, times_.heading(), "batches/s", "change", "busiest lane");
    for (size_t i = 0; i < rows_.size(); ++i) {
      line("  {:<{}}  {:>17} {:>12.1f}{}", rows_[i].name, name_width_, times_.cell(i), rows_[i].rate, rows_[i].outcome);
    }
  }

  static double batches_of(const Plan& plan) {
    std::set<int32_t> learners;
    for (const Lane& lane : plan.lanes) {
      if (lane.kind == Lane::Kind::Compute) learners.insert(lane.learner);
    }
    return double(learners.size());
  }

  // `against`: batches/s.
  static std::string outcome(const Plan& plan, const Simulation& simulation, double against) {
    const double rate = batches_of(plan) * 1e9 / simulation.steady.iteration_ns;
    const std::string change = fmt::format("{:+.1f} %", 100 * (rate / against - 1));
    const auto most = std::max_element(simulation.busy.begin(), simulation.busy.end());
    const std::string& lane = plan.lanes[simulation.busy.id_of(most)].name;
    return fmt::format(" {:>9}  {} {:.1f} %", change, lane, 100 * *most);
  }

  // Prints, for each device, the basis of the predictions for fewer learners.
  void contention() {
    for (size_t device = 0; device < trace_.plan.devices.size(); ++device) {
      const Contention& known = measured_.costs.contention[device];
      const std::string name = to_string(trace_.plan.devices[device]);
      if (known.measured) {
        const auto longest = std::max_element(known.alone.begin(), known.alone.end(), [&](auto& a, auto& b) {
          return trace_.alone[a.first] < trace_.alone[b.first];
        });
        line("  {}: alone, '{}' takes {:.0f} % of its time with all learners (measured after the run)", name,
             trace_.plan.tasks[longest->first].name, 100 * longest->second);
      } else if (!known.alone.empty()) {
        line("  {}: learners taken as sharing its throughput, so this is the most saved", name);
      } else {
        line("  {}: its learners take turns", name);
      }
    }
  }

  const TraceFile& trace_;
  const SteadyState steady_;
  Scenario measured_;
  std::vector<Row> rows_;
  TimeColumn times_{"per iteration"};  // of each row
  size_t name_width_ = std::string_view("simulated as it is").size();
  std::string text_;
};

}  // namespace

std::string predict_worlds(const TraceFile& trace, const std::vector<WorldSize>& sizes, const WorldLinks& links) {
  return PlanPrediction(trace, {}).worlds(sizes, links);
}

std::string predict(const TraceFile& trace, const std::vector<WhatIf>& changes) {
  return PlanPrediction(trace, changes).text(changes);
}

}  // namespace arbalest
