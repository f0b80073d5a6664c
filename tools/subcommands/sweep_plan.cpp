// SPDX-License-Identifier: Apache-2.0
#include "tools/subcommands/sweep_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/process.h"
#include "base/shell_word.h"
#include "graph/file/overrides.h"
#include "ops/names.h"
#include "tools/command/session_setup.h"
#include "tools/sweep/rate_search.h"
#include "tools/watch/json_lines.h"

namespace arbalest {
namespace {

namespace fs = std::filesystem;

const std::map<std::string, const char*, std::less<>> kOfTrials = {
    {"save", "the model of trial 7 is trial-007/model.safetensors in --output's folder; --keep says how many stay"},
    {"save-best", "the model of trial 7 is that of its best epoch, trial-007/model.safetensors in --output's folder"},
    {"checkpoint", "trials that have not ended keep theirs in --output's folder; --checkpoint-every says how often"},
    {"log", "the log of trial 7 is trial-007/log.jsonl in --output's folder, and all are in 'arbalest report DIR'"},
    {"trace", "a sweep writes no traces; 'arbalest run' with the settings of a trial does"},
    {"sample-every", "a sweep writes no traces; 'arbalest run' with the settings of a trial does"},
    {"change", "a sweep goes on with the settings that it was begun with"},
};

// The graph's node of the operator; throws GraphError if there is none.
const Node& node_of(const Graph& graph, std::string_view op) {
  const Node* node = graph.find_op(op);
  if (!node) throw GraphError(fmt::format("graph '{}' has no {} node; a sweep needs one", graph.name, op));
  return *node;
}

int64_t epochs_of(const SweepOptions& options, const Graph& graph) {
  if (options.session.length.epochs) return *options.session.length.epochs;
  return std::max<int64_t>(1, int64_t(float_attribute(node_of(graph, op::Train), "epochs")));
}

std::vector<VariedSettings> varied_of(const SweepOptions& options) {
  std::vector<VariedSettings> varied;
  for (const std::string& text : options.vary) varied.push_back(parse_varied(text));
  if (options.folds > 0) varied.push_back(parse_varied(fmt::format("fold=1..{}", options.folds)));
  const bool rates = std::any_of(varied.begin(), varied.end(), [](const VariedSettings& each) {
    return std::any_of(each.names.begin(), each.names.end(), is_rate);
  });
  if (options.find_rate && !rates) varied.push_back(parse_varied("train.lr=log(1e-5,1,16)"));
  if (varied.empty()) {
    throw GraphError("sweep: nothing varies; expected --vary, --folds, --find-lr, or metadata \"vary\" of the graph");
  }
  return varied;
}

// The override that names the data of a fold, without the fold's number.
std::string fold_of(const SweepOptions& options, const Graph& graph) {
  if (options.folds == 0) return "";
  const Node& prefetch = node_of(graph, op::Prefetch);
  node_of(graph, op::Validate);
  const std::string source = string_attribute(prefetch, "source");
  const std::string by = options.fold_by.empty() ? "" : "by=" + options.fold_by + "&";
  return fmt::format("prefetch.source={}{}folds={}&{}fold=", source, source.find('?') == source.npos ? "?" : "&",
                     options.folds, by);
}

// Whether nodes take each attribute of a call, which may be changed then. Calls come after those that enclose them.
std::vector<bool> taken_calls(const Graph& graph) {
  std::vector<bool> taken(graph.calls.size());
  for (size_t i = graph.calls.size(); i-- > 0;) {
    const CallAttribute& call = graph.calls[i];
    taken[i] = taken[i] || !call.takers.empty();
    if (call.given_by && taken[i]) taken[*call.given_by] = true;
  }
  return taken;
}

// The first attributes of the graph with this name, in words; "": there are none.
std::string attributes_named(const std::string& name, const Graph& graph) {
  constexpr size_t kMost = 5;
  const Table<NodeId, std::string> targets = override_names(graph);
  std::vector<std::string> found;
  const auto add = [&](const std::string& owner) {
    const std::string attribute = owner + "." + name;  // of a call and of the node that has its name
    if (found.size() < kMost && std::find(found.begin(), found.end(), attribute) == found.end()) {
      found.push_back(attribute);
    }
  };
  const std::vector<bool> taken = taken_calls(graph);
  for (size_t i = 0; i < graph.calls.size(); ++i) {
    const CallAttribute& call = graph.calls[i];
    if (call.name == name && !call.fixed && taken[i]) add(call.call);
  }
  for (const NodeId node : targets.ids()) {
    if (graph.nodes[node].op->attribute_spec(name)) add(targets[node]);
  }
  return found.empty() ? "" : fmt::format(", or an attribute of the graph: {}", fmt::join(found, ", "));
}

void check_names(const SweepPlan& plan, const SweepOptions& options, const Graph& graph) {
  for (const auto& [name, value] : plan.trials.front()) {
    if ((name == "fold" && !plan.fold.empty()) || name.find('.') != name.npos || options.varies.contains(name))
      continue;
    refuse_of_trials(name);
    if (name == "fold") throw GraphError("--vary fold: expected --folds K, which trains on all but each of K parts");
    const std::vector<std::string> names(options.varies.begin(), options.varies.end());
    const std::string attributes = attributes_named(name, graph);
    throw GraphError(
        fmt::format("--vary {}: expected NODE.ATTRIBUTE{}, or an option of 'arbalest run' that is not given "
                    "already and may differ between trials{}",
                    name, attributes, attributes.empty() ? did_you_mean(name, names) : ""));
  }
}

// Refuses two names of one attribute, of which one would have no effect.
void check_attributes(const SweepPlan& plan, const SweepOptions& options, const Graph& graph) {
  std::vector<NamedAssignment> all, kept;  // `kept`: what --set may not state as well
  for (const auto& [name, value] : plan.trials.front()) {
    if (name.find('.') == name.npos) continue;
    all.push_back({"--vary " + name, fmt::format("{}={}", name, value)});
    if (!options.find_rate || !is_rate(name)) kept.push_back(all.back());  // --find-lr tries others than a stated rate
  }
  for (const std::string& stated : options.set) {
    kept.push_back({"--set " + stated, stated});
    refuse_two_names(graph, kept, "--vary");
    kept.pop_back();
  }
  if (!plan.fold.empty()) all.push_back({"--folds", plan.fold});
  refuse_two_names(graph, all, "--vary");
}

// The words that the others lack; "none".
std::string words_without(const std::vector<std::string>& words, std::vector<std::string> others) {
  std::vector<std::string> left;
  for (const std::string& word : words) {
    const auto same = std::find(others.begin(), others.end(), word);
    if (same == others.end()) {
      left.push_back(shell_word(word));
    } else {
      others.erase(same);
    }
  }
  return left.empty() ? "none" : fmt::format("{}", fmt::join(left, " "));
}

}  // namespace

const char* place_of_trials(std::string_view option) {
  const auto found = kOfTrials.find(option);
  return found == kOfTrials.end() ? nullptr : found->second;
}

void refuse_of_trials(std::string_view option) {
  if (const char* place = place_of_trials(option)) {
    throw GraphError(fmt::format("sweep has no --{}: {}", option, place));
  }
}

// A warning if early rungs would judge rates that have yet to fall.
void tell_of_falling_rate(const SweepPlan& plan, const Graph& graph) {
  const auto& first = plan.trials.front();
  const bool varies =
      std::any_of(first.begin(), first.end(), [](const auto& each) { return each.first == "train.ema"; });
  if (varies || !judges_falling_rate(graph)) return;
  warn(
      fmt::format("the rate falls until epoch {}: at earlier rungs large rates look worse than they end; with "
                  "--set train.ema=0.98 rungs judge a moving average of the weights, which shows more of the end",
                  plan.halving->epochs.back()));
}

SweepPlan sweep_plan(const SweepOptions& options, const Graph& graph) {
  SweepPlan plan;
  plan.title = graph.name;
  plan.words = options.words;
  plan.command = options.command_line;
  std::error_code unknown;
  plan.directory = fs::current_path(unknown).string();
  const std::vector<VariedSettings> varied = varied_of(options);
  plan.trials = combinations(varied, options.samples, options.session.numerics.seed);
  for (const VariedSettings& each : varied) {
    if (each.names.size() > 1) plan.together.push_back(each.names);
  }
  plan.fold = fold_of(options, graph);
  plan.finds_rate = options.find_rate;
  if (options.find_rate) add_words_of_rate_search(plan.words, graph, options);
  if (options.search == SweepOptions::Search::Asha) {
    const auto& first = plan.trials.front();
    if (std::any_of(first.begin(), first.end(), [](const auto& each) { return each.first == "epochs"; })) {
      throw GraphError("--search asha decides how many epochs a trial trains; --vary epochs excludes it");
    }
    std::erase_if(plan.words, [](const std::string& word) { return word.starts_with("--epochs="); });
    plan.halving =
        HalvingRule{rungs_between(options.first_rung, epochs_of(options, graph), options.reduction), options.reduction};
    if (plan.halving->epochs.size() == 1) {
      throw GraphError(
          fmt::format("--search asha judges trials first after epoch {}, where their training ends; expected "
                      "more --epochs, or no search",
                      plan.halving->epochs.front()));
    }
    tell_of_falling_rate(plan, graph);
  }
  check_names(plan, options, graph);
  check_attributes(plan, options, graph);
  return plan;
}

std::optional<SweepRecord> record_before(const SweepOptions& options, const SweepPlan& plan) {
  const std::string path = sweep_log_path(options.out);
  std::error_code unknown;
  if (!fs::exists(path, unknown) || fs::file_size(path, unknown) == 0) {
    if (options.session.checkpoints.resume)
      warn(fmt::format("{}: no sweep to go on with; it starts afresh", options.out));
    return std::nullopt;
  }
  if (!options.session.checkpoints.resume) {
    throw GraphError(
        fmt::format("{}: holds a sweep; --resume goes on with it, another one needs another folder", options.out));
  }
  SweepRecord record = read_sweep_log(path);
  warn_of_faults(record.faults);
  if (record.plan == plan) {
    for (const auto& [file, hash] : record.plan.inputs) {
      if (const auto now = plan.inputs.find(file); now != plan.inputs.end() && now->second == hash) continue;
      throw GraphError(
          fmt::format("{}: the sweep there was begun with another content of '{}'; expected the file as it "
                      "was then, or another folder",
                      options.out, file));
    }
    return record;
  }
  const std::string there = words_without(record.plan.words, plan.words),
                    here = words_without(plan.words, record.plan.words);
  std::string differs = fmt::format("the options of its runs (there {}, here {})", there, here);
  if (there == here) differs = "the orders of options that state one setting";
  if (record.plan.has_words_of(plan)) differs = record.plan.trials == plan.trials ? "the search" : "the trials";
  throw GraphError(fmt::format("{}: the sweep there is another one: {} differ; expected the same command line",
                               options.out, differs));
}

}  // namespace arbalest
