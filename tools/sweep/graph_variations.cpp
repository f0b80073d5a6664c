// SPDX-License-Identifier: Apache-2.0
#include "tools/sweep/graph_variations.h"

#include <fmt/format.h>

#include <algorithm>

#include "graph/file/graph_source.h"
#include "graph/file/overrides.h"
#include "tools/sweep/rate_search.h"
#include "tools/sweep/vary.h"

namespace arbalest {
namespace {

bool is_attribute(const std::string& name) {
  return name.find('.') != name.npos;
}

// Whether two names are of one setting: an attribute may have two.
bool same_setting(const Graph& graph, const std::string& one, const std::string& other) {
  if (one == other) return true;
  if (!is_attribute(one) || !is_attribute(other)) return false;
  const auto first = override_targets(graph, one + "=", "--vary"),
             second = override_targets(graph, other + "=", "--vary");
  return std::find_first_of(first.begin(), first.end(), second.begin(), second.end()) != first.end();
}

// The names of all settings that the command line varies or states.
std::vector<std::string> settings_of_command(const SweepOptions& options) {
  std::vector<std::string> names;
  for (const std::string& text : options.vary) {
    for (const std::string& name : parse_varied(text).names) names.push_back(name);
  }
  for (const std::string& assignment : options.set) names.push_back(assignment.substr(0, assignment.find('=')));
  for (const std::string& word : options.words) {
    if (word.starts_with("--")) names.push_back(word.substr(2, word.find('=') - 2));
  }
  return names;
}

}  // namespace

std::vector<std::string> graph_variations(const SweepOptions& options, const Graph& graph) {
  const std::vector<std::string> stated = settings_of_command(options);
  const auto is_stated = [&](const std::string& name) {
    if (options.find_rate && is_rate(name)) return true;
    return std::any_of(stated.begin(), stated.end(),
                       [&](const std::string& other) { return same_setting(graph, name, other); });
  };
  std::vector<std::string> texts;
  for (const SourceMetadata& each : read_source(options.graph).metadata) {
    if (each.key.text != "vary") continue;
    const auto fail = [&](const std::string& message) {
      throw GraphError(Position{options.graph, each.key.place.line, each.key.place.column}, message);
    };
    const auto parts = split_settings(each.value, ';');
    if (!parts)
      fail(fmt::format("metadata \"vary\": found '{}', expected a ']' for each '[' and a '\\\"' for each '\\\"'",
                       each.value));
    for (std::string text : *parts) {
      text.erase(0, text.find_first_not_of(" \n\t"));
      text.erase(text.find_last_not_of(" \n\t") + 1);
      try {
        const std::vector<std::string> names = parse_varied(text).names;
        if (std::none_of(names.begin(), names.end(), is_stated)) texts.push_back(text);
      } catch (const GraphError& error) {
        fail(fmt::format("metadata \"vary\": {}", error.what()));
      }
    }
  }
  return texts;
}

}  // namespace arbalest
