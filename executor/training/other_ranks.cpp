// SPDX-License-Identifier: Apache-2.0
#include "executor/training/other_ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/setting.h"
#include "executor/run/task_error.h"
#include "executor/session/facts.h"
#include "executor/world/agreement.h"

namespace arbalest {
namespace {

// They refer to `identity` and `plan`.
std::vector<Fact> facts_of(const Prepared& prepared, const SessionOptions& options, const RunIdentity& identity,
                           const PlanText& plan) {
  std::vector<Fact> facts = {{"build", build_text()}};
  const auto add = [&](const std::string& name, auto value) { facts.push_back({name, fmt::format("{}", value)}); };
  for (const auto& [name, value] : identity.settings) facts.push_back({name, value});
  add("training samples", samples_text(*prepared.training));
  if (prepared.validation) add("validation samples", samples_text(*prepared.validation));
  const std::vector<std::string>& lines = identity.graph;
  facts.push_back(long_fact("graph", {lines.size(), [&lines](size_t i) { return lines[i]; }}));
  const PlanRequest& request = prepared.request;
  add("epochs", request.epochs);
  add("epochs of the schedule", prepared.total_epochs);
  add("iterations", request.iterations);
  std::vector<std::string> targets;
  for (const Target& target : options.rules.targets) targets.push_back(to_string(target));
  add(name_of(SettingKey::Until), fmt::format("{}", fmt::join(targets, " ")));
  add(name_of(SettingKey::Patience), options.rules.patience);
  add(name_of(SettingKey::Weights), options.files.weights.empty() ? "none" : "given");
  const CheckpointOptions& checkpoints = options.checkpoints;
  add(name_of(SettingKey::Checkpoint), checkpoints.folder.empty() ? "none" : "given");
  add(name_of(SettingKey::CheckpointEvery),
      fmt::format("{} iterations, {} epochs", checkpoints.iterations, checkpoints.epochs));
  const CheckpointFile* from = checkpoints.from.get();
  add("checkpoint to go on from",
      from ? fmt::format("{} after iteration {}, {}", std::filesystem::path(from->path).filename().string(),
                         from->checkpoint.position.iteration, from->checkpoint.parts.tag)
           : "none");
  const DivergenceOptions& divergence = options.divergence;
  add(name_of(SettingKey::Trace), options.files.trace.empty() ? "none" : "given");
  add(name_of(SettingKey::MemoryLimit), options.execution.memory_limit);
  add(name_of(SettingKey::SkipBad), options.execution.skip_bad);
  add(name_of(SettingKey::OnLost), options.on_lost == OnLost::Continue ? "continue" : "end");
  add(name_of(SettingKey::FindNan), divergence.find);
  add(name_of(SettingKey::OnNan), int(divergence.then));
  add(name_of(SettingKey::NanRateFactor), divergence.rate_factor);
  add(name_of(SettingKey::NanRollbacks), divergence.most_rollbacks);
  add(name_of(SettingKey::Change), fmt::format("{}", fmt::join(checkpoints.changes, " ")));
  facts.push_back(long_fact("plan", {plan.size(), [&plan](size_t i) { return plan.part(i); }}));
  return facts;
}

// Throws GraphError if the learners train a model each, which several processes do not do together.
void check_strategy(const Prepared& prepared) {
  for (const StrategyPhase& phase : prepared.strategies) {
    const std::string& strategy = phase.strategy.name;
    if (!strategy_spec(strategy).alone) continue;
    throw GraphError(
        fmt::format("the strategy '{}', by which learners do not agree, is for one process; expected another, or {} to "
                    "train with each process alone",
                    strategy, set_to(SettingKey::WorldSize, "1")));
  }
}

// Throws GraphError if the run is to go on without lost ranks and cannot.
void check_on_lost(const Prepared& prepared, const SessionOptions& options) {
  if (options.on_lost == OnLost::End) return;
  const PlanRequest& request = prepared.request;
  const StrategySpec& facts = strategy_spec(request.strategy.name);
  const std::string goes_on = set_to(SettingKey::OnLost, "continue"), ends = set_to(SettingKey::OnLost, "end");
  if (options.ranks->settings().collectives == Collectives::Mpi) {
    throw GraphError(fmt::format("{}: MPI ends all processes if one is lost; expected {}, or {}", goes_on, ends,
                                 set_to(SettingKey::Collectives, "gloo")));
  }
  if (!facts.goes_on_apart) {
    throw GraphError(fmt::format(
        "{}: by the strategy '{}' learners cannot go on from what each of them has; expected sma or local, or {} and "
        "{}, from which the same command goes on",
        goes_on, request.strategy.name, ends, name_of(SettingKey::Checkpoint)));
  }
  if (prepared.strategies.size() > 1) {
    throw GraphError(
        fmt::format("{} is for runs with one strategy from beginning to end; found several, or a period "
                    "that grows; expected {}",
                    goes_on, ends));
  }
  if (options.learners.per_device == 0) {
    throw GraphError(fmt::format("{} compares times of the same devices; {} excludes it",
                                 name_of(SettingKey::LearnersAuto), goes_on));
  }
}

}  // namespace

void check_world(Ranks& ranks, const Prepared& prepared, const SessionOptions& options, const RunIdentity& identity) {
  check_strategy(prepared);
  check_on_lost(prepared, options);
  const Plan plan = make_plan(prepared.program, prepared.request);
  const PlanText text(plan);
  check_alike(ranks, facts_of(prepared, options, identity, text));
}

bool goes_on_without_lost(const SessionOptions& options, const std::exception& error) {
  if (options.on_lost == OnLost::End || !options.ranks || dynamic_cast<const Diverged*>(&error)) return false;
  return options.ranks->lost() && !options.ranks->over();
}

void RanksOfRun::begin() {
  if (ranks_) ranks_->begin();
}

RanksOfRun::Change RanksOfRun::meet(SessionOptions& options, bool take_back) {
  const auto numbers = [this] {
    std::set<int> numbers;
    for (int rank = 0; rank < ranks_->size(); ++rank) numbers.insert(ranks_->number(rank));
    return numbers;
  };
  const std::set<int> before = numbers();
  const std::vector<int> back = ranks_->go_on(take_back);
  const std::set<int> now = numbers();
  Change change;
  for (const int number : back) change.returned.push_back(ranks_->name_of(number));
  for (const int number : before) {
    const bool stays = now.contains(number) && std::find(back.begin(), back.end(), number) == back.end();
    if (!stays) change.lost.push_back(ranks_->name_of(number));
  }
  options.ranks = ranks_;
  options.learners.devices.clear();
  std::map<int32_t, int32_t> hosts;  // their numbers now
  for (PlanDevice device : devices_) {
    const auto rank = now.find(device.rank);
    if (rank == now.end()) continue;
    device.rank = int32_t(std::distance(now.begin(), rank));
    device.host_number = hosts.emplace(device.host_number, int32_t(hosts.size())).first->second;
    options.learners.devices.push_back(std::move(device));
  }
  return change;
}

MonitorState monitor_of_first(Ranks& ranks, const Monitor& monitor) {
  Checkpoint mine;
  if (ranks.first()) mine.monitor = monitor.state();
  const std::string state = ranks.exchange("monitor", ranks.first() ? to_json(mine).dump() : "").front();
  return checkpoint_from_json(nlohmann::json::parse(state)).monitor;
}

}  // namespace arbalest
