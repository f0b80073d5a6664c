// SPDX-License-Identifier: Apache-2.0
#pragma once
// Subcommands of arbalest: a file tools/subcommands/NAME.cpp each, which defines declare_NAME(Subcommands&), and a row
// in tools/meson.build. The function declares the options and says what checks and carries out the command.

#include <CLI/CLI.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tools/command/options.h"
#include "tools/command/session_binding.h"

namespace arbalest {

// Throws GraphError if a positional is not given.
void require(const std::string& value, const char* what, const CLI::App& command);

class Subcommands {
 public:
  // `words`: the command line.
  Subcommands(CLI::App& root, std::vector<std::string> words) : root_(root), words_(std::move(words)) {}
  const std::vector<std::string>& words() const { return words_; }

  // A command that has been added. Its options live as long as this object.
  template <typename Options>
  struct Added {
    CLI::App& app;
    Options& options;
    std::function<void()>& check;  // called if the command line names the command; throws GraphError
    // Called with words of the command line that are none of its own, before they are refused.
    std::function<void(const std::vector<std::string>&)>& refuse;
  };
  // `parent`: the command that has it as one of its own; nullptr: arbalest. Options of commands that take a graph are
  // checked further.
  template <typename Options>
  Added<Options> add(const std::string& name, const std::string& description, int (*run)(const Options&),
                     CLI::App* parent = nullptr) {
    const auto options = std::make_shared<Options>();
    Entry& entry = add_entry(name, description, parent);
    entry.chosen = [options, run, &entry]() -> Command {
      if (entry.check) entry.check();
      if constexpr (std::is_base_of_v<GraphOptions, Options>) check_graph(*options, *entry.app);
      return {*options, [options, run] { return run(*options); }};
    };
    return {*entry.app, *options, entry.check, entry.refuse};
  }

  // The command that prints the help of all.
  void add_help(const std::string& description);

  // The command that a parsed command line names. Throws GraphError for words that have no place, with the nearest
  // valid one.
  Command chosen() const;

 private:
  struct Entry {
    CLI::App* app = nullptr;
    std::function<Command()> chosen;
    std::function<void()> check;
    std::function<void(const std::vector<std::string>&)> refuse;
  };
  Entry& add_entry(const std::string& name, const std::string& description, CLI::App* parent);
  static void check_graph(GraphOptions& options, const CLI::App& command);

  CLI::App& root_;
  const std::vector<std::string> words_;
  std::deque<Entry> entries_;
  std::vector<std::string> helped_;  // what stands after "help"
};

// Throws GraphError for words that have no place in the command.
[[noreturn]] void reject(const CLI::App& command, const std::vector<std::string>& rest);

// All of tools/meson.build, in its order: that of the help.
void declare_subcommands(Subcommands& commands);

}  // namespace arbalest
