// SPDX-License-Identifier: Apache-2.0

// arbalest sweep: many runs that differ in settings, several at once on each device.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "base/files/atomic_file.h"
#include "base/files/folder.h"
#include "base/process.h"
#include "base/shell_word.h"
#include "executor/plan/device_list.h"
#include "executor/session/output_paths.h"
#include "executor/session/shared_resources.h"
#include "tools/command/commands.h"
#include "tools/command/session_setup.h"
#include "tools/command/subcommand.h"
#include "tools/experiment/answer/table.h"
#include "tools/subcommands/sweep_plan.h"
#include "tools/subcommands/sweep_run.h"
#include "tools/sweep/check_trials.h"
#include "tools/sweep/fold_predictions.h"
#include "tools/sweep/graph_variations.h"
#include "tools/sweep/kept_samples.h"
#include "tools/sweep/leaderboard.h"
#include "tools/sweep/rate_search.h"
#include "tools/sweep/trial_runs.h"

namespace arbalest {
namespace {

namespace fs = std::filesystem;

constexpr int kMostAtOnce = 64;
constexpr int kMostOnGpu = 32;  // unless told otherwise

// Those that hold for the sweep rather than for each of its runs.
const std::set<std::string> kOfSweep = {"devices", "threads", "resume", "set", "time-limit"};

// Another name of an attribute, which varies by the attribute's own: so no trial is given both.
constexpr const char* kShortForSet = "batch";

// Notes the options of runs that are given, and those that may differ.
void take_words(const std::vector<const CLI::Option*>& of_runs, SweepOptions& options) {
  options.words = {options.graph};
  for (const CLI::Option* option : of_runs) {
    const auto& names = option->get_lnames();
    if (names.empty() || names.front() == "help") continue;
    const std::string& name = names.front();
    const bool given = option->count() > 0;
    if (!given && !kOfSweep.contains(name) && name != kShortForSet) options.varies.insert(name);
    if (!given || (kOfSweep.contains(name) && name != "set")) continue;
    if (option->get_expected_max() == 0) {
      if (option->results().front() != "false") options.words.push_back("--" + name);
      continue;
    }
    for (const std::string& value : option->results()) options.words.push_back(fmt::format("--{}={}", name, value));
  }
}

// The most runs at once: on CPUs one for each thread, on GPUs as many as LaneTuner finds useful.
int lanes_for(const SweepOptions& options, const std::vector<PlanDevice>& devices, int64_t trials) {
  const bool gpus = devices.front().kind == PlanDevice::Kind::Cuda;
  const int threads = std::max(1, thread_count(options.session) / int(devices.size()));
  const int each = options.at_once > 0 ? options.at_once : gpus ? kMostOnGpu : threads;
  return int(std::min<int64_t>(trials, int64_t(each) * int64_t(devices.size())));
}

// The surroundings of trials, of which at most so many train at once.
SweepSurroundings surroundings_for(const SweepOptions& options, const std::vector<PlanDevice>& devices, int most) {
  const bool gpus = devices.front().kind == PlanDevice::Kind::Cuda;
  const int each = (most + int(devices.size()) - 1) / int(devices.size());
  const int threads = thread_count(options.session);
  constexpr int kFewestOfGpu = 4;  // make a GPU's kernels
  SweepSurroundings around;
  around.folder = options.out;
  around.devices = devices;
  around.threads = std::max(gpus ? kFewestOfGpu : 1, threads / most);
  around.shared = std::make_shared<SharedResources>(each, threads, gpus);
  return around;
}

std::string trials_of(const SweepPlan& plan) {
  return fmt::format("{} trial{} of {}", plan.trials.size(), plan.trials.size() == 1 ? "" : "s", printable(plan.title));
}

void print_plan(const SweepPlan& plan, int lanes) {
  fmt::print("{}, {} at once\n", trials_of(plan), lanes);
  if (plan.halving) {
    fmt::print("rungs after epochs {}; the best 1/{} go on\n", fmt::join(plan.halving->epochs, ", "),
               plan.halving->reduction);
  }
  for (size_t trial = 0; trial < plan.trials.size(); ++trial) {
    fmt::print("  {:>4}  {}\n", trial + 1, printable(to_string(plan.trials[trial])));
  }
}

// Says where the models of these trials are, as far as they were kept: a few as one word of a shell, more a line each.
void print_models(const SweepOptions& options, const std::vector<int>& trials) {
  constexpr size_t kFew = 8;
  std::vector<std::string> numbers, models;
  std::error_code unknown;
  for (const int trial : trials) {
    const std::string model = trial_model(options.out, trial);
    if (!fs::exists(model, unknown)) continue;
    numbers.push_back(fmt::format("{:03}", trial + 1));
    models.push_back(printable(shell_word(model)));
  }
  if (models.size() == 1) fmt::print("best model: {}\n", models.front());
  if (models.size() > kFew) fmt::print("best models:\n  {}\n", fmt::join(models, "\n  "));
  if (models.size() < 2 || models.size() > kFew) return;
  const std::string folder = shell_word((fs::path(options.out) / "").string());  // a shell expands no quoted braces
  fmt::print("best models: {}trial-{{{}}}/model.safetensors\n", printable(folder), fmt::join(numbers, ","));
}

// Writes the predictions of the best settings and says where they and the models are. Returns false if they cannot be
// written.
bool print_folds(const SweepOptions& options, const SweepRecord& record, const SweepSurroundings& around) {
  const Leaderboard board = leaderboard_of(record);
  const std::vector<const TrialGroup*> whole = ranked_whole_groups(board, record);
  if (whole.empty()) {
    warn(
        "no predictions of samples that a model has not seen: no settings have ended in every fold; --retry runs "
        "failed trials once more");
    return true;
  }
  const TrialGroup& best = *whole.front();
  bool written = true;
  try {
    const std::string path = write_fold_predictions(record, best, around);
    fmt::print("\npredictions of the best settings, each by a model that has not seen the sample: {}\n",
               printable(path));
  } catch (const Error& error) {
    warn(fmt::format("no predictions of samples that a model has not seen: {}", error.what()));
    written = dynamic_cast<const RunError*>(&error) == nullptr;
  }
  std::error_code ignored;
  for (const int trial : best.trials) {
    if (options.keep == "0") fs::remove(trial_model(options.out, trial), ignored);
  }
  print_models(options, best.trials);
  return written;
}

void print_answer(const SweepOptions& options, const SweepRecord& record) {
  const Leaderboard board = leaderboard_of(record);
  fmt::print("\n{}", print_tables(tables_of(board, record), TableFormat::Text));
  if (board.failed > 0 && !record.plan.finds_rate) {
    fmt::print("arbalest resume {} --retry runs what failed once more\n", printable(shell_word(options.out)));
  }
  if (record.plan.finds_rate) {
    fmt::print("\n{}", rate_advice(record));
    const std::string plot = rate_plot(record);
    const std::string path = (fs::path(options.out) / "rates.svg").string();
    if (!plot.empty()) {
      AtomicFile file(path);
      file.write(plot);
      file.commit();
      fmt::print("plot: {}\n", printable(path));
    }
  }
  if (tells_predictions(record.plan) || board.groups.empty() || board.groups.front().results.empty()) return;
  if (record.plan.finds_rate) return;
  std::vector<int> best = ranked_trials(record);
  best.resize(std::min(best.size(), options.keep == "all" ? size_t(1) : size_t(std::stoll(options.keep))));
  print_models(options, best);
}

SweepOptions::Search read_search(const std::string& word) {
  using Search = SweepOptions::Search;
  const std::map<std::string, Search> words = {
      {"all", Search::All}, {"grid", Search::Grid}, {"random", Search::Random}, {"asha", Search::Asha}};
  const auto found = words.find(word);
  if (found != words.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [name, search] : words) names.push_back(name);
  throw GraphError(fmt::format("--search: found '{}', expected all, grid, random or asha{}", printable(word),
                               did_you_mean(word, names)));
}

// Refuses options that exclude each other, or that are missing.
void check_options(const CLI::App& app, const SweepOptions& options) {
  if (options.out.empty() && !options.dry_run) throw GraphError("sweep: --output DIR is missing");
  refuse_found_learners(options);
  if (options.retry && !options.session.checkpoints.resume) throw GraphError("--retry needs --resume");
  if (options.folds == 0 && app.count("--fold-by") > 0) throw GraphError("--fold-by needs --folds K");
  if (options.search == SweepOptions::Search::Grid && options.samples > 0) {
    throw GraphError("--search grid tries all combinations; --samples excludes it");
  }
  if (options.search == SweepOptions::Search::Random && options.samples == 0) {
    throw GraphError("--search random needs --samples N");
  }
  if (options.search != SweepOptions::Search::Asha) {
    for (const char* option : {"--first-rung", "--reduction"}) {
      if (app.count(option) > 0) throw GraphError(fmt::format("{} needs --search asha", option));
    }
  } else if (options.session.length.iterations || options.find_rate) {
    throw GraphError(fmt::format("--search asha counts epochs; {} excludes it",
                                 options.find_rate ? "--find-lr, which counts iterations," : "--iterations"));
  }
  const bool number =
      !options.keep.empty() && options.keep.size() < 10 &&
      std::all_of(options.keep.begin(), options.keep.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (options.keep != "all" && !number) {
    throw GraphError(fmt::format("--keep: found '{}', expected a whole number from 0, or all", options.keep));
  }
}

}  // namespace

int command_sweep(const SweepOptions& given) {
  TrialWarnings warnings;
  const Graph graph = load_with_overrides(given);
  SweepOptions options = given;
  const std::vector<std::string> of_graph = graph_variations(given, graph);
  options.vary.insert(options.vary.begin(), of_graph.begin(), of_graph.end());
  give_learners_queues((options.at_once > 0 ? options.at_once : kMostOnGpu) * options.session.learners.per_device,
                       options.devices);
  const std::vector<PlanDevice> devices = parse_devices(options.devices, default_devices);
  SweepPlan plan = sweep_plan(options, graph);
  int lanes = lanes_for(options, devices, int64_t(plan.trials.size()));
  if (plan.halving) lanes = std::min(lanes, plan.halving->lanes);
  SweepSurroundings around = surroundings_for(options, devices, lanes);
  const int64_t kept = lanes > 1 ? bytes_of_kept_samples(plan, around) : 0;
  around.keeps_samples = kept > 0;
  check_trials(plan, around, warnings);
  const auto tell_more = [&] {
    if (!of_graph.empty()) fmt::print("{} varies {}\n", printable(options.graph), fmt::join(of_graph, "; "));
    if (kept > 0) {
      fmt::print("samples are prepared once for all trials and kept on the host, as by prefetch.cache=host: {}\n",
                 bytes_text(kept));
    }
  };
  if (options.dry_run) {
    print_plan(plan, lanes);
    tell_more();
    return kDone;
  }
  std::optional<SweepRecord> before = record_before(options, plan);
  make_folders(options.out);
  std::signal(SIGPIPE, SIG_IGN);
  SweepLog log(options.out, plan, before.has_value());  // locked until predictions are written, too
  fmt::print("{}, {} at once; logs and models in {}\n", trials_of(plan), lanes, printable(options.out));
  tell_more();
  std::fflush(stdout);
  const SweepEnd sweep = run_sweep(options, plan, std::move(before), around, lanes, log);
  print_answer(options, sweep.record);
  around.keeps_samples = false;  // each is read once more
  around.threads = thread_count(options.session);
  const bool told = !sweep.over || !tells_predictions(plan) || print_folds(options, sweep.record, around);
  if (log.failed() || !told) return kFailed;
  if (!sweep.over) return kInterrupted;
  const Leaderboard board = leaderboard_of(sweep.record);
  const bool good = board.failed == 0 || (plan.finds_rate && board.done > 0);  // rates that are too high
  return good ? kDone : kFailed;
}

void declare_sweep(Subcommands& commands) {
  const auto command =
      commands.add<SweepOptions>("sweep", "train many variants of a graph, several at once", command_sweep);
  CLI::App& app = command.app;
  SweepOptions& options = command.options;
  options.command_line = commands.words();
  bind_training(app, options);
  for (CLI::Option* option : app.get_options([](const CLI::Option* each) {
         return !each->get_lnames().empty() && place_of_trials(each->get_lnames().front()) != nullptr;
       })) {
    app.remove_option(option);
  }
  const std::vector<const CLI::Option*> of_runs = std::as_const(app).get_options();
  app.get_option("--resume")
      ->description("go on with the sweep in --output's folder; start afresh where there is none");
  app.add_option("--vary", options.vary,
                 "settings that trials differ in: train.lr=0.05,0.1, seed=1..5, train.lr=log(1e-3,1,8), "
                 "a+b=1+2,3+4 together, train.milestones=[10,20],[15]; without a count, log() and uniform() are drawn; "
                 "repeatable; the graph file's metadata \"vary\" may say others")
      ->type_name("NAME=VALUES")
      ->take_all()
      ->allow_extra_args(false);
  app.add_option("--samples", options.samples, "draw so many combinations; 0: all of them")
      ->capture_default_str()
      ->type_name("N")
      ->check(whole(0, kMostSweepTrials));
  app.add_option("--folds", options.folds, "train on all but one of so many parts of the training data, for each part")
      ->capture_default_str()
      ->type_name("K")
      ->check(whole(2, 1000));
  app.add_option("--fold-by", options.fold_by, "samples with the same value of this field stay in one part")
      ->type_name("FIELD")
      ->check(not_empty());
  app.add_option_function<std::string>(
         "--search", [&options](const std::string& word) { options.search = read_search(word); },
         "all: every trial trains to its end, drawn or not; grid: of all combinations; random: of those that --samples "
         "draws; asha: the best of each rung train on")
      ->default_str("all")
      ->type_name("HOW");
  app.add_option("--first-rung", options.first_rung, "epochs after which asha judges a trial first")
      ->capture_default_str()
      ->type_name("N")
      ->check(whole(1));
  app.add_option("--reduction", options.reduction, "one of so many trials of a rung trains on to the next")
      ->capture_default_str()
      ->type_name("N")
      ->check(whole(2, 1000));
  app.add_flag("--find-lr", options.find_rate,
               "try learning rates, 16 from 1e-5 to 1 unless --vary says others, for --iterations each (200)");
  app.add_option("--output,-o", options.out, "the folder of logs and models")->type_name("DIR")->check(not_empty());
  app.add_option("--at-once", options.at_once,
                 "trials that train at the same time on each device; 0: one for each thread of a CPU, as many on a GPU "
                 "as raise the throughput; fewer if they do not fit")
      ->capture_default_str()
      ->type_name("N")
      ->check(whole(0, kMostAtOnce));
  app.add_option("--keep", options.keep,
                 "models to keep: of so many of the best trials, with --folds of all folds of so many of the best "
                 "settings; or all")
      ->capture_default_str()
      ->type_name("N");
  app.add_flag("--retry", options.retry, "with --resume: run trials that failed once more");
  app.add_flag("--dry-run", options.dry_run, "print the trials, run nothing");
  app.footer(
      "A trial is what 'arbalest run' is with the options given here and the trial's settings. A setting with a dot\n"
      "is an attribute, as --set takes it; any other an option of run, as in --vary seed=1..5 --vary "
      "precision=fp32,bf16.\n"
      "Trials that differ in seed or fold alone are one row of the leaderboard. 'arbalest report DIR' makes a page of\n"
      "it. Ctrl-C ends the sweep with checkpoints; the same command with --resume goes on.");
  command.refuse = [](const std::vector<std::string>& rest) {
    for (const std::string& word : rest) {
      if (word.starts_with("--")) refuse_of_trials(std::string_view(word).substr(2, word.find('=') - 2));
    }
  };
  command.check = [of_runs, &app, &options] {
    check_options(app, options);
    take_words(of_runs, options);
  };
}

}  // namespace arbalest
