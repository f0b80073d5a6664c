#include "tools/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "graph/error.h"
#include "tools/commands.h"

namespace arbalest {
namespace {

// Options and positionals are declared here; what they mean beyond their type is checked where it is used.
class CommandLine {
 public:
  CommandLine() : app_("Arbalest trains neural networks from graph files.", "arbalest") {
    app_.set_help_flag("-h,--help", "this text");
    app_.set_version_flag("--version", ARBALEST_VERSION);
    app_.allow_extras();
    app_.footer(
        "Exit status: 0 done, 1 the run failed, 2 the command or the graph is wrong, 3 --until was not reached,\n"
        "130 interrupted after saving.  'arbalest COMMAND --help' lists a command's options.");
    declare_run();
    declare_check();
    declare_plan();
    declare_trace();
  }

  Command parse(int argc, const char* const* argv) {
    try {
      app_.parse(argc, argv);
      return chosen();
    } catch (const CLI::CallForHelp&) {
      return Exit{kDone, app_.help()};  // the chosen subcommand's
    } catch (const CLI::CallForVersion&) {
      return Exit{kDone, fmt::format("arbalest {}\n", ARBALEST_VERSION)};
    } catch (const CLI::ParseError& error) {
      return wrong(error.what());
    } catch (const GraphError& error) {
      return wrong(error.what());
    }
  }

 private:
  CLI::App* declare(const std::string& name, const std::string& description) {
    CLI::App* command = app_.add_subcommand(name, description);
    command->allow_extras();
    return command;
  }

  void declare_plan_options(CLI::App* command, PlanOptions& options) {
    command->add_option("GRAPH", options.graph, "graph file (.onnxtxt or .onnx)")->type_name("");
    command->add_option("--devices", options.devices, "cpu:0-1, cuda:0, cuda:0,2-3 or auto")
        ->capture_default_str()
        ->type_name("LIST");
    command->add_option("--learners", options.learners, "replicas per device")
        ->capture_default_str()
        ->type_name("N")
        ->check(CLI::Range(1, 1024));
    command->add_option("--precision", precision_, "fp32, tf32 or bf16 (master weights stay fp32)")
        ->capture_default_str()
        ->type_name("P");
    command->add_option("--seed", options.seed, "of initialisers, order of data and augmentation")
        ->capture_default_str()
        ->type_name("N");
    command->add_flag("--deterministic", options.deterministic, "the same bits each time");
    command->add_option("--epochs", options.epochs, "epochs to train for")->type_name("N")->check(CLI::PositiveNumber);
    command->add_option("--iterations", options.iterations, "end after this many iterations")
        ->type_name("N")
        ->check(CLI::PositiveNumber);
    command->add_option("--set", options.set, "change a node's attribute; repeatable")
        ->type_name("NODE.ATTR=VALUE")
        ->take_all()
        ->allow_extra_args(false);
    command->add_option("--threads", options.threads, "host threads; 0: one a core")
        ->capture_default_str()
        ->type_name("N")
        ->check(CLI::Range(0, 1024));
  }

  void declare_run() {
    run_command_ = declare("run", "train as the graph says");
    declare_plan_options(run_command_, run_);
    run_command_
        ->add_option("--until", until_, "end when a validation metric gets there: 'accuracy >= 0.94'; repeatable")
        ->type_name("TARGET")
        ->take_all()
        ->allow_extra_args(false);
    run_command_->add_option("--weights", run_.weights, "start from these weights (safetensors)")->type_name("FILE");
    run_command_->add_option("--save", run_.save, "write the weights here (safetensors)")->type_name("FILE");
    run_command_->add_option("--trace", run_.trace, "write a trace that Perfetto opens (.json.gz)")->type_name("FILE");
    run_command_->add_option("--log", run_.log, "write events as JSON lines")->type_name("FILE");
    run_command_
        ->add_option("--log-every", run_.log_every, "iterations between progress events; 0: by the length of an epoch")
        ->capture_default_str()
        ->type_name("N")
        ->check(CLI::NonNegativeNumber);
    run_command_->footer(
        "Ctrl-C ends the run after the batches already read, and saves: to --save's file, otherwise to\n"
        "GRAPH.interrupted.safetensors in the working directory. A second one stops at once, without saving.");
  }

  void declare_check() {
    check_command_ = declare("check", "parse, verify, infer shapes, count parameters, work and memory; run nothing");
    declare_plan_options(check_command_, check_);
    check_command_->add_flag("--json", check_.json, "as JSON");
  }

  void declare_plan() {
    plan_command_ = declare("plan", "print the plan, or the graph after a pass");
    declare_plan_options(plan_command_, plan_);
    plan_command_->add_option("--after", plan_.after, "print the graph as this pass leaves it")->type_name("PASS");
    plan_command_->add_flag("--json", plan_.json, "as JSON");
  }

  void declare_trace() {
    trace_command_ = declare("trace", "summarise a trace");
    trace_command_->add_option("FILE", trace_.file, "trace written by run --trace")->type_name("");
    const auto count = [&](const char* name, int& value, const char* description) {
      trace_command_->add_option(name, value, description)
          ->capture_default_str()
          ->type_name("N")
          ->check(CLI::NonNegativeNumber);
    };
    count("--slowest", trace_.slowest, "task instances to list");
    count("--gaps", trace_.gaps, "gaps to list");
    count("--reasons", trace_.reasons, "causes of idleness to list a lane");
  }

  // What CLI11 could not place comes back as leftovers: here they become errors that name the nearest valid word.
  Command chosen() {
    const auto parsed = app_.get_subcommands();
    if (parsed.empty()) {
      const auto rest = app_.remaining();
      if (rest.empty()) return Exit{kWrong, app_.help()};
      reject(app_, rest);
    }
    CLI::App* command = parsed.front();
    if (const auto rest = command->remaining(); !rest.empty()) reject(*command, rest);
    if (const auto rest = app_.remaining(); !rest.empty()) reject(*command, rest);
    if (command == trace_command_) {
      require(trace_.file, "FILE", *command);
      return trace_;
    }
    if (command == check_command_) return checked(check_, *command);
    if (command == plan_command_) return checked(plan_, *command);
    for (const std::string& target : until_) run_.until.push_back(parse_target(target));
    return checked(run_, *command);
  }

  template <typename Options>
  Options checked(Options options, const CLI::App& command) const {
    require(options.graph, "GRAPH", command);
    options.precision = parse_precision(precision_);
    for (const std::string& text : options.set) {
      const size_t equals = text.find('='), dot = text.substr(0, equals).rfind('.');
      if (equals != text.npos && dot != text.npos && dot > 0 && dot + 1 < equals) continue;
      throw GraphError(fmt::format("--set '{}': expected NODE.ATTRIBUTE=VALUE, as in train.lr=0.05", text));
    }
    return options;
  }

  static void require(const std::string& value, const char* what, const CLI::App& command) {
    if (!value.empty()) return;
    throw GraphError(fmt::format("{0}: {1} is missing; 'arbalest {0} --help' says more", command.get_name(), what));
  }

  [[noreturn]] static void reject(const CLI::App& command, const std::vector<std::string>& rest) {
    const auto is_option = [](const std::string& word) { return word.size() > 1 && word[0] == '-'; };
    const auto option = std::find_if(rest.begin(), rest.end(), is_option);
    if (option != rest.end()) {
      const std::string name = option->substr(0, option->find('='));
      std::vector<std::string> known;
      for (const CLI::Option* candidate : command.get_options()) {
        for (const std::string& word : candidate->get_lnames()) known.push_back("--" + word);
      }
      throw GraphError(fmt::format("unknown option '{}'{}", name, did_you_mean(name, known)));
    }
    std::vector<std::string> commands;
    for (const CLI::App* candidate : command.get_subcommands({})) commands.push_back(candidate->get_name());
    if (commands.empty()) throw GraphError(fmt::format("unexpected argument '{}'", rest.front()));
    throw GraphError(fmt::format("unknown command '{}'{}", rest.front(), did_you_mean(rest.front(), commands)));
  }

  static Exit wrong(const std::string& message) { return {kWrong, fmt::format("arbalest: {}\n", message)}; }

  CLI::App app_;
  CLI::App *run_command_ = nullptr, *check_command_ = nullptr, *plan_command_ = nullptr, *trace_command_ = nullptr;
  RunOptions run_;
  CheckOptions check_;
  PlanCommandOptions plan_;
  TraceOptions trace_;
  std::vector<std::string> until_;
  std::string precision_ = "fp32";
};

}  // namespace

Command parse_command_line(int argc, const char* const* argv) {
  return CommandLine().parse(argc, argv);
}

}  // namespace arbalest
