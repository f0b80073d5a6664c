// SPDX-License-Identifier: Apache-2.0
#include "executor/training/run_identity.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <zlib.h>

#include <algorithm>
#include <set>
#include <string_view>

#include "base/setting.h"
#include "base/shell_word.h"
#include "executor/session/facts.h"
#include "executor/training/changes.h"
#include "graph/op.h"

namespace arbalest {
namespace {

// Settings that may change from a checkpoint to the run that goes on.
constexpr const char *kDevices = "devices", *kLearners = "learners";
// Source::checksum() of what is trained on and validated with.
constexpr const char *kTrainingSum = "training data's checksum", *kValidationSum = "validation data's checksum";

// The line of a value in the identity: name, type, shape, and its initialiser or the checksum of its initial data.
std::string line_of(const Value& value) {
  const Initializer& initializer = value.initializer;
  std::string start = fmt::format("{} {}", int(initializer.kind), initializer.a);
  if (initializer.data) {
    const auto* bytes = reinterpret_cast<const Bytef*>(initializer.data->data());
    start = fmt::format("sum {:08x}", crc32_z(0, bytes, initializer.data->size()));
  }
  return fmt::format("{}: {}{}, {}", value.name, name_of(value.type.dtype), to_string(value.type.shape), start);
}

// Begins the line of a constant. Checkpoints of earlier versions have no such lines.
constexpr std::string_view kConstant = "constant ";

bool is_of_constant(const std::string& line) {
  return line.starts_with(kConstant);
}

// How the numbers of a schedule that are others in the graph take effect nevertheless; "": there are none.
std::string way_to_change(const Graph& graph, const RunIdentity& before, const RunIdentity& here) {
  const auto line_of_train = [](const RunIdentity& identity) {
    const auto found = std::find_if(identity.graph.begin(), identity.graph.end(), [](const std::string& line) {
      return line.find(" = arbalest.Train (") != line.npos;
    });
    return found == identity.graph.end() ? std::string() : *found;
  };
  const std::string was = line_of_train(before), is = line_of_train(here);
  if (was.empty() || is.empty()) return "";
  std::string options;
  for (const std::string& change : changes_between(graph, was, is)) {
    options += " " + set_to(SettingKey::Change, shell_word(change));
  }
  return options.empty() ? ""
                         : "\n  the learning rate may change on the way: leave the graph as the run began with it, and "
                           "add:" +
                               options;
}

RunIdentity without_learners(RunIdentity identity) {
  std::erase_if(identity.settings,
                [](const auto& setting) { return setting.first == kDevices || setting.first == kLearners; });
  return identity;
}

}  // namespace

RunIdentity identity_of(const Prepared& prepared, const SessionOptions& options, const std::string& metric) {
  const PlanRequest& request = prepared.request;
  RunIdentity identity;
  const auto add = [&](const char* name, auto value) {
    identity.settings.emplace_back(name, fmt::format("{}", value));
  };
  add("training data", prepared.training->describe());
  add("validation data", prepared.validation ? prepared.validation->describe() : "none");
  add("batch", prepared.program.training().batch);
  add("precision", name_of(options.numerics.precision));
  add("seed", options.numerics.seed);
  add("deterministic", options.numerics.deterministic);
  add(kDevices, fmt::format("{} {}", request.devices.size(),
                            request.devices.front().kind == PlanDevice::Kind::Cpu ? "cpu" : "cuda"));
  add(kLearners, options.learners.per_device == 0 ? "auto" : std::to_string(options.learners.per_device));
  add("strategy", options.learners.strategy.value_or("the graph's"));
  add("scale-lr", int(options.learners.rate_scaling));
  add("plateau", options.rules.plateau);
  add("plateau-factor", options.rules.plateau_factor);
  add("metric", options.rules.metric.empty() ? "" : metric);
  if (prepared.program.skips) add("on-nan", "skip");
  const std::set<std::string>& without = options.numerics.without;
  if (!without.empty()) add("without", fmt::format("{}", fmt::join(without, ",")));
  // After the seed, which generated samples follow. Checkpoints of earlier versions have no such lines.
  add(kTrainingSum, fmt::format("{:08x}", prepared.training->checksum()));
  add(kValidationSum, prepared.validation ? fmt::format("{:08x}", prepared.validation->checksum()) : "none");
  identity.class_names = prepared.training->class_names();
  const Graph& graph = prepared.graph;
  identity.graph = node_lines(graph);
  for (const Value& value : graph.values) {
    if (value.role == Role::Constant) identity.graph.push_back(fmt::format("{}{}", kConstant, line_of(value)));
  }
  for (const Value& value : prepared.program.training().graph.values) {
    const bool starts = value.role == Role::Parameter || value.role == Role::Frozen;
    if (starts && value.view.base != kNone) identity.graph.push_back(line_of(value));
  }
  return identity;
}

void check_same_run(const CheckpointFile& file, const RunIdentity& here, const Graph& graph, bool with_others) {
  const RunIdentity& before = file.checkpoint.identity;
  RunIdentity now = with_others ? without_learners(here) : here;
  if (std::none_of(before.graph.begin(), before.graph.end(), is_of_constant)) std::erase_if(now.graph, is_of_constant);
  std::erase_if(now.settings, [&](const auto& setting) {
    const bool sum = setting.first == kTrainingSum || setting.first == kValidationSum;
    return sum && std::none_of(before.settings.begin(), before.settings.end(),
                               [&](const auto& other) { return other.first == setting.first; });
  });
  const auto found = differences(with_others ? without_learners(before) : before, now);
  if (found.empty()) return;
  const std::string way = way_to_change(graph, before, here);
  const std::string none =
      "\na run goes on with the settings, graph and data of its checkpoint; others need a run of their own, with "
      "another folder for " +
      name_of(SettingKey::Checkpoint);
  throw GraphError(fmt::format("{}: the checkpoint is of another run:\n  {}{}", file.path, fmt::join(found, "\n  "),
                               way.empty() ? none : way));
}

}  // namespace arbalest
