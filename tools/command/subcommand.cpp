// SPDX-License-Identifier: Apache-2.0
#include "tools/command/subcommand.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "base/shell_word.h"
#include "tools/command/commands.h"
#include "tools/start/unknown_option.h"

namespace arbalest {
namespace {

// The words that name a command after "arbalest": "run", "bench compare".
std::string words_of(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  const bool nested = parent != nullptr && parent->get_parent() != nullptr;
  return (nested ? parent->get_name() + " " : "") + command.get_name();
}

CommandOptions options_of(const CLI::App& command) {
  CommandOptions found{words_of(command), {}};
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& word : option->get_lnames()) found.options.push_back("--" + word);
  }
  return found;
}

// Refuses the name of an option in the place of another one's value.
void refuse_swallowed(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional()) continue;  // "--" may stand before names that begin with "-"
    for (const std::string& value : option->results()) {
      if (value.size() < 2 || value[0] != '-' || !command.get_option_no_throw(value)) continue;
      throw GraphError(fmt::format("{}: found the option '{}', expected a value", option->get_name(), value));
    }
  }
}

}  // namespace

void require(const std::string& value, const char* what, const CLI::App& command) {
  if (!value.empty()) return;
  throw GraphError(fmt::format("{0}: {1} is missing; 'arbalest {0} --help' says more", words_of(command), what));
}

void reject(const CLI::App& command, const std::vector<std::string>& rest) {
  const auto is_option = [](const std::string& word) { return word.size() > 1 && word[0] == '-'; };
  const auto option = std::find_if(rest.begin(), rest.end(), is_option);
  if (option != rest.end()) {
    const CLI::App* root = &command;
    while (root->get_parent() != nullptr) root = root->get_parent();
    std::vector<CommandOptions> others;
    for (const CLI::App* other : root->get_subcommands({})) others.push_back(options_of(*other));
    const std::string next = option + 1 != rest.end() ? option[1] : "";
    throw GraphError(unknown_option(*option, next, options_of(command), others));
  }
  std::vector<std::string> commands;
  for (const CLI::App* candidate : command.get_subcommands({})) commands.push_back(candidate->get_name());
  if (commands.empty()) {
    const CLI::Option* resume = command.get_option_no_throw("--resume");
    const char* each = command.get_option_no_throw("--vary") ? "--vary" : "--set";
    const bool assigns = rest.front().find('=') != std::string::npos && command.get_option_no_throw(each);
    const std::string hint = rest.front().starts_with("=") ? "; NODE.ATTRIBUTE=VALUE has no blanks around '='"
                             : assigns
                                 ? fmt::format("; each {0} takes one setting: {0} {1}", each, shell_word(rest.front()))
                             : resume && resume->count() > 0 ? "; --resume takes no value: --checkpoint DIR --resume"
                                                             : "";
    throw GraphError(fmt::format("unexpected argument '{}'{}", rest.front(), hint));
  }
  if (rest.front().ends_with(".onnxtxt")) {
    throw GraphError(
        fmt::format("'{}' is no command; to train it: arbalest run {}", rest.front(), shell_word(rest.front())));
  }
  throw GraphError(fmt::format("unknown command '{}'{}", rest.front(), did_you_mean(rest.front(), commands)));
}

Subcommands::Entry& Subcommands::add_entry(const std::string& name, const std::string& description, CLI::App* parent) {
  CLI::App* app = (parent ? parent : &root_)->add_subcommand(name, description);
  app->allow_extras();
  entries_.push_back({app, {}, {}, {}});
  return entries_.back();
}

void Subcommands::add_help(const std::string& description) {
  Entry& entry = add_entry("help", description, nullptr);
  entry.app->add_option("COMMAND", helped_, "such as run")->type_name("");
  entry.chosen = [] {
    const char* const words[] = {"arbalest", "--help"};
    return parse_command_line(2, words);
  };
}

Command Subcommands::chosen() const {
  const auto parsed = root_.get_subcommands();
  if (parsed.empty()) {
    if (const auto rest = root_.remaining(); !rest.empty()) reject(root_, rest);
    return command_of(Exit{kWrong, root_.help()});
  }
  const auto entry_of = [&](const CLI::App* app) {
    return std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.app == app; });
  };
  auto entry = entry_of(parsed.front());
  const auto check_rest = [&](const std::vector<std::string>& rest) {
    refuse_swallowed(*entry->app);
    if (rest.empty()) return;
    if (entry->refuse) entry->refuse(rest);
    reject(*entry->app, rest);
  };
  check_rest(entry->app->remaining());
  if (const auto inner = entry->app->get_subcommands(); !inner.empty()) {
    entry = entry_of(inner.front());
    check_rest(entry->app->remaining());
  }
  if (const auto rest = root_.remaining(); !rest.empty()) reject(*entry->app, rest);
  return entry->chosen();
}

void Subcommands::check_graph(GraphOptions& options, const CLI::App& command) {
  for (const char* name : {"--seed", "--skip-bad"}) {
    const CLI::Option* option = command.get_option_no_throw(name);
    if (option && option->count() > 0) options.given.insert(name);
  }
  require(options.graph, "GRAPH", command);
  const FileOptions& files = options.session.files;
  if (files.weights.empty() && !files.weights_map.empty()) throw GraphError("--weights-map needs --weights");
  if (files.weights.empty() && !files.fresh.empty()) throw GraphError("--fresh needs --weights");
  for (const std::string& text : options.set) {
    const size_t equals = text.find('='), dot = text.substr(0, equals).rfind('.');
    if (equals != text.npos && dot != text.npos && dot > 0 && dot + 1 < equals) continue;
    throw GraphError(
        fmt::format("--set '{}': expected NODE.ATTRIBUTE=VALUE without blanks, as in train.lr=0.05", text));
  }
}

}  // namespace arbalest
