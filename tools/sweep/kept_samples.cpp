// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/kept_samples.h"

#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "executor/run/sample_cache.h"
#include "executor/session/session.h"
#include "graph/file/overrides.h"
#include "graph/op.h"
#include "io/open/open_source.h"
#include "io/sources/source.h"
#include "ops/names.h"
#include "tools/command/session_setup.h"

namespace arbalest {
namespace {

// Whether trials that differ in the setting have other prepared samples. `keeps`: becomes true if it says where they
// are kept.
bool is_of_samples(const std::string& name, const Graph& graph, bool& keeps) {
  const Node& prefetch = *graph.find_op(op::Prefetch);
  if (name == "fold") return true;
  if (name == "seed") return follows_seed(string_attribute(prefetch, "source"));
  if (name.find('.') == name.npos) return false;
  bool of_samples = false;
  for (const OverrideTarget& target : override_targets(graph, name + "=", "--vary")) {
    const Node& node = graph.nodes[target.node];
    keeps = keeps || (&node == &prefetch && target.attribute == "cache");
    const bool reads = &node == &prefetch || node.is(op::Validate);
    of_samples =
        of_samples || node.op->prepare || (reads && target.attribute != "batch" && target.attribute != "depth");
  }
  return of_samples;
}

// The first trial of those whose samples have one size, and how many sets of such samples there are.
struct SampleSets {
  int trial = 0;
  std::set<TrialSettings> sets;
};

// By the settings that samples depend on; empty if trials differ in where these are kept.
std::map<TrialSettings, SampleSets> sets_of_samples(const SweepPlan& plan, const Graph& graph) {
  bool keeps = false;
  std::set<std::string> names;
  for (const auto& [name, value] : plan.trials.front()) {
    if (is_of_samples(name, graph, keeps)) names.insert(name);
  }
  std::map<TrialSettings, SampleSets> all;
  if (keeps) return all;
  for (int trial = 0; trial < int(plan.trials.size()); ++trial) {
    TrialSettings settings, repetitions;
    for (const auto& each : plan.trials[size_t(trial)]) {
      if (names.contains(each.first)) (is_repetition(each.first) ? repetitions : settings).push_back(each);
    }
    all.try_emplace(settings, SampleSets{trial, {}}).first->second.sets.insert(repetitions);
  }
  return all;
}

RunOptions options_of_trial(const SweepPlan& plan, int trial, const SweepSurroundings& around) {
  return options_of_job(plan, {trial, 0, plan.halving ? plan.halving->epochs.front() : 0}, 0, around);
}

}  // namespace

int64_t bytes_of_kept_samples(const SweepPlan& plan, const SweepSurroundings& around) {
  try {
    const Graph first = load_with_overrides(options_of_trial(plan, 0, around));
    const Node* prefetch = first.find_op(op::Prefetch);
    if (!prefetch || prefetch->attributes.find("cache")) return 0;
    int64_t bytes = 0;
    for (const auto& [settings, sets] : sets_of_samples(plan, first)) {
      const RunOptions options = options_of_trial(plan, sets.trial, around);
      Graph graph = load_with_overrides(options);
      apply_override(graph, "prefetch.cache=host");
      SessionOptions session = session_options(options, false);
      session.shared = around.shared;
      const int64_t of_set = bytes_of_caches(prepare(std::move(graph), session));
      bytes += checked_multiply(of_set, int64_t(sets.sets.size()), "prepared samples");
    }
    check_memory_for_caches(checked_multiply(2, bytes, "prepared samples"));
    return bytes;
  } catch (const Error&) {  // of the graph, which check_trials() will say; or nothing can be kept
    return 0;
  }
}

}  // namespace arbalest
