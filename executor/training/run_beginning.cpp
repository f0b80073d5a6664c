// SPDX-License-Identifier: Apache-2.0
#include "executor/training/run_beginning.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/setting.h"
#include "executor/devices/device.h"
#include "executor/segment/segment.h"
#include "executor/session/output_paths.h"
#include "executor/session/reading.h"
#include "executor/training/checkpoint.h"
#include "executor/world/ranks.h"
#include "ops/optim/train.h"

namespace arbalest {
namespace {

// A note if the learning rate goes on otherwise than the run before would have had it. That is by what was asked for,
// or because a schedule of the run's length has become another with it.
std::string resumed_note(const RunBeginning& run) {
  if (run.options.checkpoints.from && run.complete) {
    const std::vector<std::string>& asked = run.options.checkpoints.changes;
    return asked.empty() ? "" : fmt::format("the run is complete: {} changes nothing", fmt::join(asked, ", "));
  }
  std::string note =
      run.changes.empty() ? "" : fmt::format("changed since the run began: {}", fmt::join(run.changes, ", "));
  // With a change of the rate itself what it was before is not known from the schedule as it is now.
  if (!run.options.checkpoints.from || !run.changes.empty()) return note;
  const Checkpoint& from = run.options.checkpoints.from->checkpoint;
  const LearningRate schedule(run.prepared.program.train);
  const double before = schedule.rate(from.position.epochs, from.total_epochs),
               now = schedule.rate(from.position.epochs, run.prepared.total_epochs);
  if (before == now) return note;
  return fmt::format(
      "{}{}the learning rate goes on with {:.3g} and was {:.3g}: its schedule is as long as the run, {:.4g} epochs now "
      "and {:.4g} before; {} keeps it",
      note, note.empty() ? "" : "; ", now, before, run.prepared.total_epochs, from.total_epochs,
      set_to(SettingKey::Change, fmt::format("train.epochs={:g}", std::ceil(from.total_epochs))));
}

// The change by which the schedule of the rate spans the run, as messages name it. Epochs that are no whole number need
// the iterations next to them, which the run ends after.
std::string schedule_of(const Prepared& prepared) {
  const double epochs = prepared.total_epochs;
  const bool whole = epochs == std::floor(epochs);
  return fmt::format(
      "{} train.epochs={}{}", name_of(SettingKey::Set), epochs,
      whole ? "" : " with " + set_to(SettingKey::Iterations, std::to_string(prepared.request.iterations)));
}

// A note if the schedule of the rate ends before the run does, or the run before its schedule; "" otherwise.
std::string schedule_note(const RunBeginning& run) {
  const Node& train = run.prepared.program.train;
  const std::string schedule = string_attribute(train, "schedule");
  const double last = float_attribute(train, "epochs"), total = run.prepared.total_epochs;
  const bool cycle = schedule == "onecycle";
  if (!LearningRate(train).ends() || last <= 0 || total == last) return "";
  if (total < last) {
    return fmt::format(
        "the run ends after epoch {:.4g} of {:g} of the learning rate's schedule, at a rate of {:.3g}; {} shortens it",
        total, last, LearningRate(train).rate(total, total), schedule_of(run.prepared));
  }
  return fmt::format("the learning rate's schedule ends after epoch {:g} of {:.4g}, with {}; {} stretches it", last,
                     total, cycle || float_attribute(train, "lr_end") > 0 ? "its last rate" : "a rate of 0",
                     schedule_of(run.prepared));
}

// A note if the run ends before a strategy takes its turn; "" otherwise.
std::string strategy_note(const RunBeginning& run) {
  const double total = run.prepared.total_epochs;
  for (const StrategyPhase& phase : run.prepared.strategies) {
    if (phase.from == 0 || double(phase.from) < total) continue;
    return fmt::format("the run ends after epoch {:.4g}, before strategy {} takes its turn: its 'from' is {}", total,
                       phase.strategy.name, phase.from);
  }
  return "";
}

// A note if an epoch leaves out more than a few of the samples; "" otherwise.
std::string left_out_note(const RunBeginning& run) {
  constexpr double kMany = 0.05;
  const int64_t samples = run.prepared.request.training_samples, left_out = samples_left_out(run.prepared);
  if (double(left_out) < kMany * double(samples)) return "";
  return fmt::format(
      "an epoch leaves out {} of {} samples ({:.0f} %), others each time, since batches are whole: "
      "arbalest.Prefetch's 'batch'",
      left_out, samples, 100 * double(left_out) / double(samples));
}

// A note if CPUs that lack the instructions for it compute in bf16; "" otherwise.
std::string precision_note(const RunBeginning& run) {
  const std::vector<PlanDevice>& devices = run.prepared.request.devices;
  const bool cpu = std::any_of(devices.begin(), devices.end(),
                               [](const PlanDevice& device) { return device.kind == PlanDevice::Kind::Cpu; });
  if (run.options.numerics.precision != Precision::Bf16 || !cpu || cpu_has_bfloat16()) return "";
  return fmt::format(
      "this CPU has no instructions for bf16, which is many times slower than fp32 here; {} trains faster",
      set_to(SettingKey::Precision, "fp32"));
}

// A note if several learners, or several devices, are one processor; "" otherwise.
std::string learners_note(const RunBeginning& run) {
  const std::vector<PlanDevice>& devices = run.prepared.request.devices;
  const Ranks* ranks = run.options.ranks.get();
  const auto here = std::count_if(devices.begin(), devices.end(), [&](const PlanDevice& device) {
    return !ranks || ranks->host(device.rank) == ranks->host(ranks->rank());
  });
  const int64_t all = here * run.prepared.request.learners;
  const bool cpus = std::all_of(devices.begin(), devices.end(),
                                [](const PlanDevice& device) { return device.kind == PlanDevice::Kind::Cpu; });
  if (!cpus || all == 1 || run.options.learners.per_device == 0) return "";
  return fmt::format("{} learners share this processor, which is slower than one learner: {}", all,
                     ranks && ranks->size() > 1 ? set_to(SettingKey::WorldSize, "1")
                                                : set_to(SettingKey::Learners, "1") + ", with one device");
}

// Notes on options that change nothing in this run.
std::string idle_options_note(const RunBeginning& run) {
  const ValidationRules& rules = run.options.rules;
  std::vector<std::string> notes;
  if (rules.plateau > 0 && rules.patience > 0 && rules.patience <= rules.plateau) {
    notes.push_back(fmt::format("{} never acts, because {} ends the run before",
                                set_to(SettingKey::Plateau, std::to_string(rules.plateau)),
                                set_to(SettingKey::Patience, std::to_string(rules.patience))));
  }
  const LearnerOptions& learners = run.options.learners;
  const int64_t all = int64_t(run.prepared.request.devices.size()) * run.prepared.request.learners;
  if (all == 1 && learners.per_device != 0) {
    if (learners.strategy && *learners.strategy != "none") {
      notes.push_back(set_to(SettingKey::Strategy, *learners.strategy) + " changes nothing with one learner");
    }
    if (learners.rate_scaling != RateScaling::None) {
      notes.push_back(name_of(SettingKey::ScaleLr) + " changes nothing with one learner");
    }
  }
  return fmt::format("{}", fmt::join(notes, "; "));
}

bool validates(const Plan& plan) {
  const ClockRelation* known = plan.relation(plan.handles.by_validation);
  return known && plan.clocks[known->coarse].ticks > 0;
}

// Epochs without learning are not meant. Runs of some --iterations, and those that go on from a checkpoint, have a note
// instead.
void check_schedule(const Prepared& prepared) {
  const LearningRate schedule(prepared.program.train);
  const double last = float_attribute(prepared.program.train, "epochs");
  const auto all = double(prepared.request.epochs);
  const bool stops = schedule.ends() && last > 0 && all >= last + 1;
  if (prepared.request.iterations > 0 || !stops || schedule.rate(all, prepared.total_epochs) > 0) return;
  throw GraphError(fmt::format(
      "the learning rate's schedule ends after epoch {:g}, and the run has {:.4g}: the rate would be 0 in the others; "
      "expected {} train.epochs={:.4g}, which stretches the schedule, or {}",
      last, all, name_of(SettingKey::Set), all, set_to(SettingKey::Epochs, fmt::format("{:g}", last))));
}

}  // namespace

void check_rules(const Prepared& prepared, const SessionOptions& options, const Plan& plan) {
  check_schedule(prepared);
  const ValidationRules& rules = options.rules;
  using Asking = std::optional<SettingKey>;
  const Asking asks = !rules.targets.empty()           ? Asking(SettingKey::Until)
                      : rules.patience > 0             ? Asking(SettingKey::Patience)
                      : rules.plateau > 0              ? Asking(SettingKey::Plateau)
                      : saves_by_metric(options.files) ? Asking(SettingKey::SaveBest)
                                                       : std::nullopt;
  const bool can = prepared.program.find(LoopRole::Validate) != nullptr;
  // Learners that are still to be found may have a longer run.
  if (!asks || validates(plan) || (can && options.learners.per_device == 0)) return;
  if (!can) throw GraphError(name_of(*asks) + " needs a graph that validates");
  throw GraphError(fmt::format("{} needs a validation, and the run ends before its first: {} iterations, {} an epoch",
                               name_of(*asks), plan.clocks[0].ticks, prepared.request.rounds));
}

std::string notes_on(const RunBeginning& run) {
  std::vector<std::string> notes = run.prepared.notes;
  for (std::string note : {resumed_note(run), note_of_labels(run.prepared), left_out_note(run), schedule_note(run),
                           strategy_note(run), precision_note(run), learners_note(run), idle_options_note(run)}) {
    if (!note.empty()) notes.push_back(std::move(note));
  }
  return fmt::format("{}", fmt::join(notes, "; "));
}

}  // namespace arbalest
