// SPDX-License-Identifier: Apache-2.0
#include "executor/training/world_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "executor/session/facts.h"
#include "executor/world/agreement.h"

namespace arbalest {
namespace {

// Facts that have to be the same everywhere: name, value.
std::vector<std::pair<std::string, std::string>> facts_of(const Prepared& prepared, const SessionOptions& options,
                                                          const RunIdentity& identity) {
  std::vector<std::pair<std::string, std::string>> facts = {{"build", build_text()}};
  const auto add = [&](const char* name, auto value) { facts.emplace_back(name, fmt::format("{}", value)); };
  facts.insert(facts.end(), identity.settings.begin(), identity.settings.end());
  add("training samples", samples_text(*prepared.training));
  if (prepared.validation) add("validation samples", samples_text(*prepared.validation));
  add("graph", sum_of(fmt::format("{}", fmt::join(identity.graph, "\n"))));
  const PlanRequest& request = prepared.request;
  add("epochs", request.epochs);
  add("iterations", request.iterations);
  std::vector<std::string> targets;
  for (const Target& target : options.rules.targets) targets.push_back(to_string(target));
  add("--until", fmt::format("{}", fmt::join(targets, " ")));
  add("--patience", options.rules.patience);
  const CheckpointOptions& checkpoints = options.checkpoints;
  add("--checkpoint", checkpoints.folder.empty() ? "none" : "given");
  add("--checkpoint-every", fmt::format("{} iterations, {} epochs", checkpoints.iterations, checkpoints.epochs));
  const CheckpointFile* from = checkpoints.from.get();
  add("checkpoint to go on from",
      from ? fmt::format("{} after iteration {}", std::filesystem::path(from->path).filename().string(),
                         from->checkpoint.position.iteration)
           : "none");
  const DivergenceOptions& divergence = options.divergence;
  add("--trace", options.files.trace.empty() ? "none" : "given");
  add("--memory-limit", options.execution.memory_limit);
  add("--skip-bad", options.execution.skip_bad);
  add("--find-nan", divergence.find);
  add("--on-nan", int(divergence.then));
  add("--nan-rate-factor", divergence.rate_factor);
  add("--nan-rollbacks", divergence.most_rollbacks);
  add("--change", fmt::format("{}", fmt::join(checkpoints.changes, " ")));
  add("plan", sum_of(print_plan(make_plan(prepared.program, request))));
  return facts;
}

// Throws GraphError if the learners train a model each, which several processes do not do together.
void check_strategy(const Prepared& prepared) {
  for (const StrategyPhase& phase : prepared.strategies) {
    const std::string& strategy = phase.strategy.name;
    if (!strategy_spec(strategy).alone) continue;
    throw GraphError(
        fmt::format("the strategy '{}', by which learners do not agree, is for one process; expected another, or "
                    "--world-size 1 to train with each process alone",
                    strategy));
  }
}

}  // namespace

void check_world(Ranks& ranks, const Prepared& prepared, const SessionOptions& options, const RunIdentity& identity) {
  check_strategy(prepared);
  check_alike(ranks, facts_of(prepared, options, identity));
}

}  // namespace arbalest
