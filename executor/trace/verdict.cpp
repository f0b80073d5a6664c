// SPDX-License-Identifier: Apache-2.0
#include "executor/trace/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <utility>

#include "base/setting.h"
#include "executor/trace/amounts.h"
#include "executor/trace/layer_times.h"
#include "executor/trace/trace_intervals.h"

namespace arbalest {
namespace {

constexpr double kBusy = 0.9;  // a device that computes so much of the time is what bounds the run

// "Bound by …", if the cause says all of it.
std::string bound_by(IdleCause cause, const TracedRun& run) {
  switch (cause) {
    case IdleCause::Input:
    case IdleCause::Reading: return "input";
    case IdleCause::Copy: return "copies to the device";
    case IdleCause::Averaging: return agreeing_in_words(run);
    case IdleCause::Results: return "taking results";
    case IdleCause::Validation: return "validation";
    case IdleCause::Pace: return "how far the host may run ahead";
    case IdleCause::Thread: return "the host's threads";
    default: return "the host";
  }
}

// Whether it comes back by the plan, though not in each iteration.
bool comes_back(IdleCause cause) {
  return cause == IdleCause::Validation || cause == IdleCause::Averaging;
}

class Judgement {
 public:
  Judgement(const TraceFile& trace, const TraceSummary& summary)
      : trace_(trace), summary_(summary), steady_(summary.iteration_ns > 0) {}

  Verdict run() {
    measure_compute();
    sum_causes();
    leave_out_rare();
    limit();
    input();
    averaging();
    if (verdict_.figures.size() < 3) pace();
    verdict_.sentence += '.';
    verdict_.notes = notes_on(trace_.run);
    return std::move(verdict_);
  }

 private:
  const Lane& lane_of(LaneId lane) const { return trace_.plan.lanes[lane]; }
  bool computes(LaneId lane) const { return lane_of(lane).kind == Lane::Kind::Compute; }

  // The share of the steady state in which a device computes, over all devices that do; and its compute lanes.
  void measure_compute() {
    Interval window{summary_.begin, summary_.end};
    if (steady_) {
      window = {summary_.end, summary_.begin};
      for (const TaskSpan& span : trace_.tasks) {
        const Task& task = trace_.plan.tasks[span.task];
        if (task.clock != 0 || !computes(task.lane)) continue;
        if (span.instance < summary_.first_steady || span.instance > summary_.last_steady) continue;
        window.from = std::min(window.from, span.started);
        window.to = std::max(window.to, span.ended);
      }
    }
    const Table<LaneId, Intervals> busy = busy_times(trace_.plan, trace_.tasks);
    std::map<int32_t, Intervals> of_device;
    for (const LaneSummary& lane : summary_.lanes) {
      if (!computes(lane.lane)) continue;
      if (first_lane_ == kNone) first_lane_ = lane.lane;
      ++lanes_;
      Intervals& all = of_device[lane_of(lane.lane).device];
      all.insert(all.end(), busy[lane.lane].begin(), busy[lane.lane].end());
    }
    window_ns_ = std::max<int64_t>(1, window.to - window.from);
    const Intervals whole = {window};
    for (auto& [device, times] : of_device) {
      const int64_t time = common(merged(std::move(times)), whole);
      busy_ += double(time) / double(window_ns_) / double(of_device.size());
      if (device != kNone) devices_.push_back(to_string(trace_.plan.devices[size_t(device)]));
    }
  }

  std::string where() const {
    if (devices_.empty()) return "the device";
    return devices_.size() == 1 ? devices_[0] : fmt::format("{} devices", devices_.size());
  }

  // Divides the time in which nothing computes among its causes. Lanes of a CPU device that wait for their turn are
  // left out, since they wait for work of the device itself.
  void sum_causes() {
    int64_t all = 0, longest = 0;
    for (const LaneSummary& lane : summary_.lanes) {
      if (!computes(lane.lane)) continue;
      late_.batches += steady_ ? lane.steady_late : lane.late;
      for (const IdleShare& share : lane.causes) {
        const int64_t ns = steady_ ? share.steady_ns : share.ns;
        waits_[size_t(share.cause)] += ns;
        if (!comes_back(share.cause)) {
          auto& rare = rare_.waits[size_t(share.cause)];
          rare.insert(rare.end(), share.rare.begin(), share.rare.end());
        }
        const bool told = share.cause != IdleCause::Turns && share.cause != IdleCause::Nothing;
        if (told) all += ns;
        if (!told || ns <= longest) continue;
        longest = ns;
        idle_lane_ = lane.lane;
      }
    }
    for (size_t cause = 0; cause < kIdleCauses; ++cause) {
      const bool told = cause != size_t(IdleCause::Turns) && cause != size_t(IdleCause::Nothing);
      if (told && all > 0) shares_[cause] = (1 - busy_) * double(waits_[cause]) / double(all);
    }
    for (size_t cause = 0; cause < kIdleCauses; ++cause) words_[cause] = in_words(IdleCause(cause), trace_.run);
  }

  // Judges the time without a few long waits, which a longer run has no more of.
  void leave_out_rare() {
    constexpr double kMatters = 0.01;  // of the time
    late_.share = shares_[size_t(IdleCause::Input)] + shares_[size_t(IdleCause::Reading)];
    std::array<double, kIdleCauses> rare{};
    for (size_t cause = 0; cause < kIdleCauses; ++cause) {
      int64_t ns = 0;
      for (const LongWait& wait : rare_.waits[cause]) ns += wait.ns;
      if (ns > 0) rare[cause] = shares_[cause] * double(ns) / double(waits_[cause]);
    }
    const double all = std::accumulate(rare.begin(), rare.end(), 0.0);
    if (all >= kMatters && all < 1) {
      std::array<size_t, kIdleCauses> order{};
      std::iota(order.begin(), order.end(), size_t{0});
      std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rare[a] > rare[b]; });
      for (const size_t cause : order) {
        if (rare[cause] <= 0) break;
        if (!rare_.words.empty()) rare_.words += ", and ";
        rare_.words += rare_in_words(cause);
      }
      busy_ /= 1 - all;
      for (size_t cause = 0; cause < kIdleCauses; ++cause) shares_[cause] = (shares_[cause] - rare[cause]) / (1 - all);
    }
    join({IdleCause::Input, IdleCause::Reading});
    join({IdleCause::Issuing, IdleCause::Noticing, IdleCause::Starting});
  }

  // "2 long waits, 121 ms in all, because …". What learners wait for together is one wait, as long as the longest of
  // theirs.
  std::string rare_in_words(size_t cause) const {
    std::vector<LongWait> waits = rare_.waits[cause];
    std::sort(waits.begin(), waits.end(), [](const LongWait& a, const LongWait& b) { return a.gap.from < b.gap.from; });
    std::vector<LongWait> together;
    for (const LongWait& wait : waits) {
      if (together.empty() || wait.gap.from >= together.back().gap.to) {
        together.push_back(wait);
        continue;
      }
      LongWait& same = together.back();
      same.gap.to = std::max(same.gap.to, wait.gap.to);
      same.ns = std::max(same.ns, wait.ns);
    }
    int64_t ns = 0;
    for (const LongWait& wait : together) ns += wait.ns;
    return fmt::format("{}, {} in all, because {}", counted(int64_t(together.size()), "long wait"),
                       duration(double(ns)), words_[cause]);
  }

  // Causes that have one remedy are one: the first of them takes all, in the words of those that matter.
  IdleCause join(std::vector<IdleCause> causes) {
    constexpr double kMatters = 0.1;  // of their sum
    const auto share = [&](IdleCause cause) -> double& { return shares_[size_t(cause)]; };
    std::stable_sort(causes.begin(), causes.end(), [&](IdleCause a, IdleCause b) { return share(a) > share(b); });
    double sum = 0;
    for (const IdleCause cause : causes) sum += share(cause);
    for (size_t i = 1; i < causes.size(); ++i) {
      if (std::exchange(share(causes[i]), 0) <= kMatters * sum) continue;
      words_[size_t(causes[0])] += ", or " + words_[size_t(causes[i])];
    }
    share(causes[0]) = sum;
    return causes[0];
  }

  void limit() {
    if (lanes_ == 0) {
      verdict_.sentence = "Nothing computes in this trace";
      return;
    }
    const auto top = std::max_element(shares_.begin(), shares_.end());
    const auto cause = IdleCause(top - shares_.begin());
    verdict_.figures.push_back({in_percent(busy_),
                                fmt::format("of the time {} compute{}{}", where(), devices_.size() > 1 ? "" : "s",
                                            rare_.words.empty() ? "" : ", a few long waits apart"),
                                VerdictFigure::Where::Lane, int32_t(first_lane_)});
    if (busy_ >= kBusy || *top <= 0) {
      const std::string most = costliest();
      verdict_.sentence = fmt::format("Bound by compute on {}, busy {} of the time{}", where(), in_percent(busy_),
                                      most.empty() ? "" : ": " + most);
    } else {
      const char* s = devices_.size() > 1 ? "" : "s";
      verdict_.sentence =
          fmt::format("Bound by {}: {} compute{} {} of the time, and wait{} {} of it because {}", bound(cause), where(),
                      s, in_percent(busy_), s, in_percent(*top), words_[size_t(cause)]);
    }
    if (!rare_.words.empty()) verdict_.sentence += "; not counting " + rare_.words;
  }

  std::string bound(IdleCause cause) const {
    return cause == IdleCause::Compute ? slowest() : bound_by(cause, trace_.run);
  }

  // The learner or the device that is waited for, if it is the same most of the time.
  std::string slowest() const {
    constexpr double kMost = 0.6;
    const Table<LaneId, int64_t>& awaited = summary_.awaited_ns;
    const auto all = double(std::accumulate(awaited.begin(), awaited.end(), int64_t{0}));
    std::map<int32_t, int64_t> by_device;
    for (const LaneId lane : awaited.ids()) {
      if (!computes(lane)) continue;
      by_device[lane_of(lane).device] += awaited[lane];
    }
    const auto lane = awaited.id_of(std::max_element(awaited.begin(), awaited.end()));
    if (double(awaited[lane]) > kMost * all && lane_of(lane).learner != kNone) {
      const std::string device = to_string(trace_.plan.devices[size_t(lane_of(lane).device)]);
      return fmt::format("learner {} on {}, the slowest", lane_of(lane).learner, device);
    }
    for (const auto& [device, ns] : by_device) {
      if (by_device.size() < 2 || device == kNone || double(ns) <= kMost * all) continue;
      return fmt::format("{}, the slowest device", to_string(trace_.plan.devices[size_t(device)]));
    }
    return "whichever learner is the slowest";
  }

  // "the costliest layer, conv2, takes 41 % of it", of layers, or else of tasks if there are several.
  std::string costliest() const {
    const std::vector<LayerTime> layers = layer_times(trace_);
    if (!layers.empty()) {
      int64_t all = 0;
      for (const LayerTime& layer : layers) all += layer.total_ns();
      return fmt::format("the costliest layer, {}, takes {} of it", layers[0].name,
                         in_percent(double(layers[0].total_ns()) / double(std::max<int64_t>(1, all))));
    }
    std::map<std::string, int64_t> tasks;
    int64_t all = 0;
    for (const TaskSummary& task : summary_.tasks) {
      const Task& known = trace_.plan.tasks[task.task];
      if (!computes(known.lane)) continue;
      tasks[known.name.substr(known.name.rfind('/') + 1)] += task.total_ns;
      all += task.total_ns;
    }
    if (tasks.size() < 2) return "";
    const auto most =
        std::max_element(tasks.begin(), tasks.end(), [](auto& a, auto& b) { return a.second < b.second; });
    return fmt::format("the costliest task, {}, takes {} of it", most->first,
                       in_percent(double(most->second) / double(all)));
  }

  void input() {
    const auto fill = std::find_if(summary_.tasks.begin(), summary_.tasks.end(), [&](const TaskSummary& task) {
      const Task& known = trace_.plan.tasks[task.task];
      return known.kind == Task::Kind::Fill && known.learner != kNone;
    });
    if (fill == summary_.tasks.end() || lanes_ == 0) return;
    const int64_t iterations = steady_ ? summary_.last_steady - summary_.first_steady + 1 : fill->count;
    const int64_t batches = iterations * lanes_, late = std::min(late_.batches, batches);
    if (late == 0) {
      verdict_.sentence += "; input never late";
      verdict_.figures.push_back(
          {"never",
           fmt::format("did compute wait for input, in {}{}", counted(batches, "batch", "batches"),
                       steady_ ? " of the steady state" : ""),
           VerdictFigure::Where::Task, int32_t(fill->task)});
      return;
    }
    verdict_.sentence += fmt::format("; input late for {} of {}", grouped(late), counted(batches, "batch", "batches"));
    const bool many = batches >= 10'000;  // then a share says more
    const std::string text = fmt::format("{}batches came late, which cost {} of the time",
                                         many ? fmt::format("of {} ", grouped(batches)) : "", in_percent(late_.share));
    const std::string value =
        many ? in_percent(double(late) / double(batches)) : fmt::format("{} of {}", grouped(late), grouped(batches));
    verdict_.figures.push_back({value, text, VerdictFigure::Where::Idle, int32_t(idle_lane_)});
  }

  void averaging() {
    int64_t busy = 0, hidden = 0, most = 0;
    LaneId lane = kNone;  // where most of it is done
    for (const Hiding& part : summary_.hiding) {
      const bool averages = part.kind == Lane::Kind::Averaging || part.kind == Lane::Kind::Collectives;
      if (part.lane == kNone || !averages) continue;
      busy += part.busy_ns;
      hidden += part.hidden_ns;
      if (part.busy_ns > most) lane = part.lane, most = part.busy_ns;
    }
    if (busy == 0) return;
    const std::string share = in_percent(double(hidden) / double(busy));
    const std::string what = agreeing_in_words(trace_.run);
    verdict_.sentence += fmt::format("; {} {} hidden", what, share);
    const int32_t device = lane_of(lane).device;
    const bool turns = std::any_of(trace_.plan.devices.begin(), trace_.plan.devices.end(),
                                   [](const PlanDevice& one) { return one.kind == PlanDevice::Kind::Cpu; });
    const std::string text = turns && hidden == 0
                                 ? fmt::format("of {} hidden: a CPU device does one thing at a time", what)
                                 : fmt::format("of {} ran while {} device computed", what,
                                               turns             ? "another"
                                               : device == kNone ? "a"
                                                                 : "its");
    verdict_.figures.push_back({share, text, VerdictFigure::Where::Lane, int32_t(lane)});
  }

  void pace() {
    if (!steady_ || summary_.critical.edges.empty()) return;
    const double bound = summary_.critical.bound() * 1000;
    const bool whole = bound > 0.98 * summary_.iteration_ns;
    verdict_.figures.push_back({duration(summary_.iteration_ns),
                                whole
                                    ? "an iteration, all of it on the plan's critical cycle"
                                    : fmt::format("an iteration; the plan's critical cycle allows {}", duration(bound)),
                                VerdictFigure::Where::Cycle});
  }

  const TraceFile& trace_;
  const TraceSummary& summary_;
  const bool steady_;  // whether there is a steady state; otherwise the whole trace is judged
  LaneId first_lane_ = kNone, idle_lane_ = kNone;
  int64_t lanes_ = 0, window_ns_ = 1;
  struct {
    int64_t batches = 0;
    double share = 0;  // of the time, that they cost
  } late_;
  struct {
    std::array<std::vector<LongWait>, kIdleCauses> waits;  // by cause, of all lanes
    std::string words;                                     // rare_in_words() of each cause; "": all waits count
  } rare_;                                                 // waits that are no part of an iteration or an epoch
  std::vector<std::string> devices_;
  double busy_ = 0;
  std::array<int64_t, kIdleCauses> waits_{};
  std::array<double, kIdleCauses> shares_{};      // of the time
  std::array<std::string, kIdleCauses> words_{};  // "because …"
  Verdict verdict_;
};

}  // namespace

std::vector<std::string> notes_on(const TracedRun& run) {
  std::vector<std::string> notes;
  const std::string after = run.ended_after < 0 ? "" : " after " + counted(run.ended_after, "iteration");
  if (run.ended == RunEnd::Failed) {
    notes.push_back(fmt::format("The run failed: {}.", run.message));
  } else if (run.ended == RunEnd::Interrupted) {
    notes.push_back(
        fmt::format("The run was interrupted{}{}.", run.message.empty() ? "" : " by " + run.message, after));
  } else if (run.ended != RunEnd::Unknown) {
    const char* how = run.ended == RunEnd::TimeLimit  ? "The run was out of time"
                      : run.ended == RunEnd::Until    ? "The run reached its targets"
                      : run.ended == RunEnd::Patience ? "The run was out of patience"
                                                      : "The run was complete";
    notes.push_back(fmt::format("{}{}.", how, after));
  }
  if (run.ranks > 1) {
    notes.push_back(fmt::format("Times of {} are on the clock of rank 0, to within {}.", counted(run.ranks, "rank"),
                                duration(double(run.clock_error))));
  }
  if (run.begins == SegmentBegin::Run) return notes;
  const std::string why = run.begins == SegmentBegin::Resumed ? "was resumed from a checkpoint"
                          : run.begins == SegmentBegin::Tuned
                              ? "was planned anew by " + name_of(SettingKey::LearnersAuto)
                          : run.begins == SegmentBegin::GoneBack  ? "had gone back to a checkpoint"
                          : run.begins == SegmentBegin::RanksLost ? "went on without processes that were lost"
                                                                  : "was planned anew";
  notes.push_back(
      fmt::format("The trace begins after {} of the run, where it {}, with {} on each device{}.",
                  counted(run.iterations, "iteration"), why, counted(run.learners, "learner"),
                  run.first == 0 ? "" : fmt::format("; its iteration 0 is the run's {}, counted from 0", run.first)));
  return notes;
}

Verdict judge(const TraceFile& trace, const TraceSummary& summary) {
  return Judgement(trace, summary).run();
}

}  // namespace arbalest
