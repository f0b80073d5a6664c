// SPDX-License-Identifier: Apache-2.0

// arbalest resume: a run goes on from its newest checkpoint.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/process.h"
#include "base/shell_word.h"
#include "executor/training/checkpoint_folder.h"
#include "tools/command/commands.h"
#include "tools/command/subcommand.h"
#include "tools/sweep/sweep_log.h"

namespace arbalest {
namespace {

constexpr const char *kRendezvousTimeout = "--rendezvous-timeout", *kLostAfter = "--lost-after",
                     *kCollectives = "--collectives";

// An option of a command line that names a folder: "--output", "-o"; `brief` may be "".
struct FolderOption {
  std::string name, brief;
};

// The words that started a run or a sweep, as a command that goes on with it, with the folder as it is now.
std::string run_again(const std::vector<std::string>& words, const FolderOption& option, const std::string& folder) {
  std::string command;
  for (size_t i = 0; i < words.size(); ++i) {
    const auto is = [&](const std::string& name) { return i > 0 && !name.empty() && words[i - 1] == name; };
    std::string word = i == 0 ? "arbalest" : words[i];
    if (is(option.name) || is(option.brief)) word = folder;
    if (word.starts_with(option.name + "=")) word = option.name + "=" + folder;
    const bool attached = !option.brief.empty() && word.starts_with(option.brief) && word.size() > option.brief.size();
    if (attached) word = option.brief + folder;
    command += (i > 0 ? " " : "") + shell_word(word);
  }
  const bool resumes = std::find(words.begin(), words.end(), "--resume") != words.end();
  return command + (resumes ? "" : " --resume");
}

// Options of run, which resume has none of.
void refuse_changes(const CLI::App& resume, const std::vector<std::string>& rest) {
  const CLI::App* run = resume.get_parent()->get_subcommand("run");
  for (const std::string& word : rest) {
    const std::string name = word.substr(0, word.find('='));
    const bool own = resume.get_option_no_throw(name) != nullptr;
    if (!name.starts_with("--") || own || run->get_option_no_throw(name) == nullptr) continue;
    const bool of_folder = name == "--checkpoint" || name == "--resume";
    throw GraphError(
        fmt::format("resume takes no {}: it repeats the run's own command line{}", name,
                    of_folder ? "" : "; to change that, give 'arbalest run' the whole of it, with --resume"));
  }
}

// The run's place among several processes, with what this process says of its own.
WorldOptions world_of(const WorldOptions& run, const ResumeOptions& options) {
  const WorldOptions& own = options.world;
  WorldOptions world = run;
  if (own.rank) world.rank = own.rank;
  if (own.size) world.size = own.size;
  if (!own.rendezvous.empty()) world.rendezvous = own.rendezvous;
  if (!own.secret_file.empty()) world.secret_file = own.secret_file;
  if (options.given.contains(kRendezvousTimeout)) world.patience = own.patience;
  if (options.given.contains(kLostAfter)) world.silence = own.silence;
  if (options.given.contains(kCollectives)) world.collectives = own.collectives;
  if (run.rank && !own.rank && world.size.value_or(1) > 1) {
    throw GraphError(
        fmt::format("the run was started by hand, as {} processes; expected --rank, which is this one's", *world.size));
  }
  return world;
}

// A sweep goes on as its own command with --resume does.
int resume_sweep(const ResumeOptions& options) {
  if (!options.changes.empty()) throw GraphError("--change: a sweep goes on as it was begun");
  if (options.world.rank || options.world.size) throw GraphError("--rank: a sweep is one process");
  const SweepPlan plan = read_sweep_log(sweep_log_path(options.folder)).plan;
  std::error_code error;
  const std::string folder = std::filesystem::absolute(options.folder, error).string();
  std::filesystem::current_path(plan.directory, error);
  std::vector<const char*> words;
  for (const std::string& word : plan.command) {
    if (word != "--retry") words.push_back(word.c_str());
  }
  if (std::find(plan.command.begin(), plan.command.end(), "--resume") == plan.command.end()) {
    words.push_back("--resume");
  }
  if (options.retry) words.push_back("--retry");
  const Command command = parse_command_line(int(words.size()), words.data());
  const SweepOptions* sweep = options_if<SweepOptions>(command);
  if (error || !sweep || !std::filesystem::equivalent(sweep->out, folder, error)) {
    throw RunError(
        fmt::format("{}: the sweep was begun in the directory '{}' with another folder; one that was moved "
                    "goes on by its own command with --resume:\n  {}",
                    options.folder, plan.directory, run_again(plan.command, {"--output", "-o"}, folder)));
  }
  return command.run();
}

}  // namespace

int command_resume(const ResumeOptions& options) {
  std::error_code error;
  if (std::filesystem::exists(sweep_log_path(options.folder), error)) return resume_sweep(options);
  if (options.retry) {
    throw GraphError(fmt::format("--retry: runs trials of a sweep once more, and {} holds none", options.folder));
  }
  if (!std::filesystem::is_directory(options.folder, error)) {
    throw GraphError(fmt::format("{}: found {}, expected the folder of a run's checkpoints", options.folder,
                                 std::filesystem::exists(options.folder, error) ? "no folder" : "nothing"));
  }
  const auto file = newest_of_first(options.folder);
  if (!file) throw GraphError(fmt::format("{}: the folder has no checkpoint to go on from", options.folder));
  const std::string folder = std::filesystem::absolute(options.folder, error).string();
  const Checkpoint& checkpoint = file->checkpoint;
  const std::filesystem::path here = std::filesystem::current_path(error);
  std::filesystem::current_path(checkpoint.folder, error);
  if (error) {
    throw RunError(fmt::format(
        "{}: the run's working directory '{}': {}; a project that was moved goes on in its new place by the run's own "
        "command: {}",
        file->path, checkpoint.folder, error.message(), run_again(checkpoint.command, {"--checkpoint", ""}, folder)));
  }
  if (here != std::filesystem::current_path(error))
    warn(fmt::format("relative paths are taken from '{}', where the run began", checkpoint.folder));
  std::vector<const char*> words;
  for (const std::string& word : checkpoint.command) words.push_back(word.c_str());
  const Command command = parse_command_line(int(words.size()), words.data());
  const RunOptions* run = options_if<RunOptions>(command);
  if (!run) throw RunError(fmt::format("{}: its command line is none of a run", file->path));
  RunOptions again = *run;
  again.world = world_of(run->world, options);
  again.session.checkpoints.folder = folder;
  again.session.checkpoints.resume = true;
  again.session.checkpoints.changes = options.changes;  // those of its own are in the checkpoint
  return command_run(again);
}

void declare_resume(Subcommands& commands) {
  const auto command =
      commands.add<ResumeOptions>("resume", "go on with a run from its newest checkpoint", command_resume);
  CLI::App& app = command.app;
  ResumeOptions& options = command.options;
  app.add_option("DIR", options.folder, "the run's --checkpoint")->type_name("")->check(not_empty());
  bind_changes(app, options.changes);
  app.add_flag("--retry", options.retry, "of a sweep: run trials that failed once more");
  bind_world(app, options.world);
  app.footer(
      "The command line is the run's, as are the folder that it is carried out in, its log and its event files.\n"
      "The run trains what it would have trained without being ended, with --deterministic to the last bit.");
  command.refuse = [&app](const std::vector<std::string>& words) { refuse_changes(app, words); };
  command.check = [&app, &options] {
    require(options.folder, "DIR", app);
    for (const char* name : {kRendezvousTimeout, kLostAfter, kCollectives}) {
      if (app.count(name) > 0) options.given.insert(name);
    }
  };
}

}  // namespace arbalest
