// SPDX-License-Identifier: Apache-2.0
#include "tools/start/unknown_option.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/other_names.h"
#include "base/shell_word.h"
#include "graph/op.h"
#include "ops/builtin_ops.h"
#include "ops/names.h"

namespace arbalest {
namespace {

bool has(const CommandOptions& command, const std::string& option) {
  return std::find(command.options.begin(), command.options.end(), option) != command.options.end();
}

// Attributes that are options elsewhere are those of the nodes that every graph has.
std::string as_attribute(std::string name, const std::string& value) {
  std::replace(name.begin(), name.end(), '-', '_');
  for (const auto& [op, node] : {std::pair(op::Train, "train"), std::pair(op::Prefetch, "prefetch")}) {
    std::vector<std::string> attributes;
    for (const AttributeSpec& attribute : builtin_ops().get(op).attributes) attributes.push_back(attribute.name);
    const bool exact = std::find(attributes.begin(), attributes.end(), name) != attributes.end();
    const std::string own = exact ? name : own_name(name, attributes);
    if (!own.empty()) {
      return fmt::format("; it is an attribute of the graph: --set {}.{}={}", node, own,
                         value.empty() ? "VALUE" : shell_word(value));
    }
  }
  return "";
}

}  // namespace

std::string unknown_option(const std::string& word, const std::string& next, const CommandOptions& asked,
                           const std::vector<CommandOptions>& others) {
  const size_t equals = word.find('=');
  const std::string name = word.substr(0, equals);
  if (has(asked, name)) {
    return fmt::format("option '{0}' stands before the command; expected arbalest {1} … {0}", name, asked.command);
  }
  const std::string value = equals != word.npos ? word.substr(equals + 1) : next.starts_with("-") ? "" : next;
  std::string hint;
  const bool second = asked.command == "init" || asked.command == "export";
  if (second && (name == "-o" || name == "--output" || name == "--out")) {
    hint = fmt::format("; FILE is the second argument: arbalest {} {} {}", asked.command,
                       asked.command == "init" ? "NAME" : "GRAPH", value.empty() ? "FILE" : shell_word(value));
  } else if (const std::string own = own_name(name, asked.options); !own.empty()) {
    hint = fmt::format("; did you mean '{}'?", own);
  } else if (has(asked, "--set")) {
    hint = as_attribute(name.substr(std::min(name.size(), name.find_first_not_of('-'))), value);
  }
  if (hint.empty()) hint = did_you_mean(name, asked.options);
  if (hint.empty()) {
    std::vector<std::string> having;
    for (const CommandOptions& other : others) {
      if (has(other, name)) having.push_back(fmt::format("'arbalest {}'", other.command));
    }
    if (!having.empty()) hint = fmt::format("; {} {} it", fmt::join(having, ", "), having.size() == 1 ? "has" : "have");
  }
  return fmt::format("unknown option '{}'{}", name, hint);
}

}  // namespace arbalest
