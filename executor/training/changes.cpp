// SPDX-License-Identifier: Apache-2.0
#include "executor/training/changes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/setting.h"
#include "executor/training/checkpoint.h"
#include "graph/file/overrides.h"
#include "graph/op.h"
#include "ops/names.h"

namespace arbalest {
namespace {

// The state of an optimiser is of any of these: no slot, no accumulation and no averaging depends on them.
const std::vector<std::string> kChangeable = {"lr", "lr_end", "epochs", "milestones", "step_size", "gamma", "power"};

// The target of "train.lr=0.01".
std::string target_of(const std::string& change) {
  return change.substr(0, change.find('='));
}

// The text of an attribute in a line "node: … name=value name=value"; "": it is not there.
std::string attribute_in(const std::string& line, const std::string& name) {
  const size_t found = line.find(" " + name + "=");
  if (found == line.npos) return "";
  const size_t begin = found + name.size() + 2;
  const size_t next = line.find('=', begin);
  return line.substr(begin, next == line.npos ? next : line.rfind(' ', next) - begin);
}

}  // namespace

std::vector<std::string> changes_between(const Graph& graph, const std::string& before, const std::string& now) {
  std::vector<std::string> changes;
  const Node* train = graph.find_op(op::Train);
  for (const std::string& name : kChangeable) {
    const Attribute* value = train ? train->attributes.find(name) : nullptr;
    if (!value || attribute_in(before, name) == attribute_in(now, name)) continue;
    changes.push_back(fmt::format("train.{}={}", name, to_string(*value)));
  }
  return changes;
}

std::vector<std::string> changes_of(const CheckpointOptions& options) {
  std::vector<std::string> changes;
  if (options.from) changes = options.from->checkpoint.changes;
  for (const std::string& change : options.changes) {
    std::erase_if(changes, [&](const std::string& other) { return target_of(other) == target_of(change); });
    changes.push_back(change);
  }
  return changes;
}

void apply_changes(Graph& graph, const std::vector<std::string>& changes) {
  for (const std::string& change : changes) {
    const auto changeable = [&](const OverrideTarget& target) {
      return graph.nodes[target.node].is(op::Train) &&
             std::find(kChangeable.begin(), kChangeable.end(), target.attribute) != kChangeable.end();
    };
    const auto targets = override_targets(graph, change, name_of(SettingKey::Change));
    if (!std::all_of(targets.begin(), targets.end(), changeable)) {
      throw GraphError(fmt::format("{}: expected a number of the learning rate's schedule: train.{}",
                                   set_to(SettingKey::Change, change), fmt::join(kChangeable, ", train.")));
    }
    apply_override(graph, change, name_of(SettingKey::Change));
  }
}

}  // namespace arbalest
