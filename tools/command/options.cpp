// SPDX-License-Identifier: Apache-2.0
#include "tools/command/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "base/error.h"
#include "base/plain_message.h"
#include "base/shell_word.h"
#include "base/version.h"
#include "tools/command/commands.h"
#include "tools/command/subcommand.h"

namespace arbalest {
namespace {

// The command line as a whole: the program's own options and help, and its subcommands.
class CommandLine {
 public:
  CommandLine(int argc, const char* const* argv) : commands_(app_, {argv, argv + argc}) {
    app_.set_help_flag("-h,--help", "this text");
    app_.set_version_flag("--version", ARBALEST_VERSION);
    app_.allow_extras();
    app_.footer(
        "To begin: 'arbalest init lenet' writes a graph file, 'arbalest run lenet.onnxtxt' trains it. What a graph\n"
        "may have in it: 'arbalest ops' lists operators, 'arbalest sources' data sets.\n\n"
        "Exit status: 0 done, 1 the run failed or could not write its weights or its log where they were asked for,\n"
        "2 the command or the graph is wrong, 3 --until was not reached, 130 interrupted or out of time.\n"
        "'arbalest COMMAND --help' lists a command's options.");
    declare_subcommands(commands_);
    commands_.add_help("what --help says, of a command or of all");
  }

  // The help of a command, or of all.
  std::string help_of(const std::vector<std::string>& words) {
    const CLI::App* about = &app_;
    std::string before;
    for (const std::string& word : words) {
      const std::vector<const CLI::App*> inner = about->get_subcommands({});
      const auto found =
          std::find_if(inner.begin(), inner.end(), [&](const CLI::App* each) { return each->get_name() == word; });
      if (found == inner.end()) reject(*about, {word});
      before += (before.empty() ? "" : " ") + about->get_name();
      about = *found;
    }
    return about->help(before);
  }

  Command parse(int argc, const char* const* argv) {
    // A command named after "help" would be parsed as one.
    std::vector<std::string> about;
    if (argc > 1 && std::string_view(argv[1]) == "help") about.assign(argv + 2, argv + argc);
    std::erase_if(about, [](const std::string& word) { return word.starts_with('-'); });
    try {
      if (!about.empty()) return command_of(Exit{kDone, help_of(about)});
      app_.parse(argc, argv);
      return commands_.chosen();
    } catch (const CLI::CallForHelp&) {
      return command_of(Exit{kDone, app_.help()});  // the chosen subcommand's
    } catch (const CLI::CallForVersion&) {
      return command_of(Exit{kDone, fmt::format("arbalest {}\n", ARBALEST_VERSION)});
    } catch (const CLI::ArgumentMismatch& error) {
      // "--epochs: 1 required N missing", or "--epochs: At Most 1 required but received 2"
      const std::string what = error.what();
      const char* found = what.ends_with(" missing") ? "no value" : "more than one value";
      return wrong(fmt::format("{}: found {}, expected one", what.substr(0, what.find(':')), found));
    } catch (const CLI::ParseError& error) {
      return wrong(error.what());
    } catch (const GraphError& error) {
      return wrong(error.what());
    }
  }

 private:
  static Command wrong(const std::string& message) { return command_of(Exit{kWrong, shown_message(message)}); }

  CLI::App app_{"Arbalest trains neural networks from graph files.", "arbalest"};
  Subcommands commands_;
};

}  // namespace

int command_exit(const Exit& exit) {
  std::fputs(exit.text.c_str(), exit.status == kDone ? stdout : stderr);
  return exit.status;
}

Command parse_command_line(int argc, const char* const* argv) {
  return CommandLine(argc, argv).parse(argc, argv);
}

}  // namespace arbalest
