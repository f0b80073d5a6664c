// SPDX-License-Identifier: Apache-2.0

// arbalest sweep: many runs that differ in settings, several at once on each device.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <string_view>
#include <utility>

#include "base/files/atomic_file.h"
#include "base/files/folder.h"
#include "base/process.h"
#include "base/shell_word.h"
#include "base/time/deadlines.h"
#include "executor/console/terminal.h"
#include "executor/plan/device_list.h"
#include "executor/plan/make_plan.h"
#include "executor/session/output_paths.h"
#include "executor/session/shared_resources.h"
#include "executor/sweep/lane_tuner.h"
#include "graph/file/overrides.h"
#include "tools/command/commands.h"
#include "tools/command/interrupt.h"
#include "tools/command/session_setup.h"
#include "tools/command/subcommand.h"
#include "tools/experiment/answer/summary.h"
#include "tools/sweep/check_trials.h"
#include "tools/sweep/fold_predictions.h"
#include "tools/sweep/graph_variations.h"
#include "tools/sweep/kept_samples.h"
#include "tools/sweep/leaderboard.h"
#include "tools/sweep/rate_search.h"
#include "tools/sweep/trial_runs.h"
#include "tools/watch/json_lines.h"

namespace arbalest {
namespace {

namespace fs = std::filesystem;

constexpr int kMostAtOnce = 64;
constexpr int kMostOnGpu = 32;   // unless told otherwise
constexpr int kLikelyOnGpu = 8;  // for which kernels are chosen until more are found to pay

// Options of a run that a sweep sets for each trial, or that make no sense for several runs, and what takes their
// place.
const std::map<std::string, std::string_view, std::less<>> kOfTrials = {
    {"save", "the model of trial 7 is trial-007/model.safetensors in --output's folder; --keep says how many stay"},
    {"save-best", "the model of trial 7 is that of its best epoch, trial-007/model.safetensors in --output's folder"},
    {"checkpoint", "trials that have not ended keep theirs in --output's folder; --checkpoint-every says how often"},
    {"log", "the log of trial 7 is trial-007/log.jsonl in --output's folder, and all are in 'arbalest report DIR'"},
    {"trace", "a sweep writes no traces; 'arbalest run' with the settings of a trial does"},
    {"sample-every", "a sweep writes no traces; 'arbalest run' with the settings of a trial does"},
    {"change", "a sweep goes on with the settings that it was begun with"},
};
// Those that hold for the sweep rather than for each of its runs.
const std::set<std::string> kOfSweep = {"devices", "threads", "resume", "set", "time-limit"};

bool is_of_trials(const CLI::Option& option) {
  return !option.get_lnames().empty() && kOfTrials.contains(option.get_lnames().front());
}

// Throws GraphError that says where the files are which an option of a run names, if it is one of those.
void refuse_of_trials(std::string_view option) {
  const auto found = kOfTrials.find(option);
  if (found != kOfTrials.end()) throw GraphError(fmt::format("sweep has no --{}: {}", option, found->second));
}

// Notes the options of runs that are given, and those that may differ.
void take_words(const std::vector<const CLI::Option*>& of_runs, SweepOptions& options) {
  options.words = {options.graph};
  for (const CLI::Option* option : of_runs) {
    const auto& names = option->get_lnames();
    if (names.empty() || names.front() == "help") continue;
    const std::string& name = names.front();
    const bool given = option->count() > 0;
    if (!given && !kOfSweep.contains(name)) options.varies.insert(name);
    if (!given || (kOfSweep.contains(name) && name != "set")) continue;
    if (option->get_expected_max() == 0) {
      if (option->results().front() != "false") options.words.push_back("--" + name);
      continue;
    }
    for (const std::string& value : option->results()) options.words.push_back(fmt::format("--{}={}", name, value));
  }
}

// The graph's node of the operator; throws GraphError if there is none.
const Node& node_of(const Graph& graph, std::string_view op) {
  const Node* node = graph.find_op(op);
  if (!node) throw GraphError(fmt::format("graph '{}' has no {} node; a sweep needs one", graph.name, op));
  return *node;
}

int64_t epochs_of(const SweepOptions& options, const Graph& graph) {
  if (options.session.length.epochs) return *options.session.length.epochs;
  return std::max<int64_t>(1, int64_t(float_attribute(node_of(graph, "arbalest.Train"), "epochs")));
}

std::vector<VariedSettings> varied_of(const SweepOptions& options) {
  std::vector<VariedSettings> varied;
  for (const std::string& text : options.vary) varied.push_back(parse_varied(text));
  if (options.folds > 0) varied.push_back(parse_varied(fmt::format("fold=1..{}", options.folds)));
  const bool rates = std::any_of(varied.begin(), varied.end(), [](const VariedSettings& each) {
    return std::any_of(each.names.begin(), each.names.end(), is_rate);
  });
  if (options.find_rate && !rates) varied.push_back(parse_varied("train.lr=log(1e-5,1,16)"));
  if (varied.empty()) {
    throw GraphError("sweep: nothing varies; expected --vary, --folds, --find-lr, or metadata \"vary\" of the graph");
  }
  return varied;
}

// The override that names the data of a fold, without the fold's number.
std::string fold_of(const SweepOptions& options, const Graph& graph) {
  if (options.folds == 0) return "";
  const Node& prefetch = node_of(graph, "arbalest.Prefetch");
  node_of(graph, "arbalest.Validate");
  const std::string source = string_attribute(prefetch, "source");
  const std::string by = options.fold_by.empty() ? "" : "by=" + options.fold_by + "&";
  return fmt::format("prefetch.source={}{}folds={}&{}fold=", source, source.find('?') == source.npos ? "?" : "&",
                     options.folds, by);
}

// The first attributes of the graph with this name, in words; "": there are none.
std::string attributes_named(const std::string& name, const Graph& graph) {
  constexpr size_t kMost = 5;
  const Table<NodeId, std::string> targets = override_names(graph);
  std::vector<std::string> found;
  for (const NodeId node : targets.ids()) {
    const bool has = graph.nodes[node].op->attribute_spec(name) != nullptr;
    if (has && found.size() < kMost) found.push_back(targets[node] + "." + name);
  }
  return found.empty() ? "" : fmt::format(", or an attribute of the graph: {}", fmt::join(found, ", "));
}

void check_names(const SweepPlan& plan, const SweepOptions& options, const Graph& graph) {
  for (const auto& [name, value] : plan.trials.front()) {
    if ((name == "fold" && !plan.fold.empty()) || name.find('.') != name.npos || options.varies.contains(name))
      continue;
    refuse_of_trials(name);
    if (name == "fold") throw GraphError("--vary fold: expected --folds K, which trains on all but each of K parts");
    const std::vector<std::string> names(options.varies.begin(), options.varies.end());
    const std::string attributes = attributes_named(name, graph);
    throw GraphError(
        fmt::format("--vary {}: expected NODE.ATTRIBUTE{}, or an option of 'arbalest run' that is not given "
                    "already and may differ between trials{}",
                    name, attributes, attributes.empty() ? did_you_mean(name, names) : ""));
  }
}

// Refuses two names of one attribute, of which one would have no effect.
void check_attributes(const SweepPlan& plan, const SweepOptions& options, const Graph& graph) {
  std::vector<NamedAssignment> all, kept;  // `kept`: what --set may not state as well
  for (const auto& [name, value] : plan.trials.front()) {
    if (name.find('.') == name.npos) continue;
    all.push_back({"--vary " + name, fmt::format("{}={}", name, value)});
    if (!options.find_rate || !is_rate(name)) kept.push_back(all.back());  // --find-lr tries others than a stated rate
  }
  for (const std::string& stated : options.set) {
    kept.push_back({"--set " + stated, stated});
    refuse_two_names(graph, kept, "--vary");
    kept.pop_back();
  }
  if (!plan.fold.empty()) all.push_back({"--folds", plan.fold});
  refuse_two_names(graph, all, "--vary");
}

SweepPlan plan_of(const SweepOptions& options, const Graph& graph) {
  SweepPlan plan;
  plan.title = graph.name;
  plan.words = options.words;
  plan.command = options.command_line;
  std::error_code unknown;
  plan.directory = fs::current_path(unknown).string();
  const std::vector<VariedSettings> varied = varied_of(options);
  plan.trials = combinations(varied, options.samples, options.session.numerics.seed);
  for (const VariedSettings& each : varied) {
    if (each.names.size() > 1) plan.together.push_back(each.names);
  }
  plan.fold = fold_of(options, graph);
  plan.finds_rate = options.find_rate;
  if (options.find_rate) add_words_of_rate_search(plan.words, graph, options);
  if (options.search == SweepOptions::Search::Asha) {
    const auto& first = plan.trials.front();
    if (std::any_of(first.begin(), first.end(), [](const auto& each) { return each.first == "epochs"; })) {
      throw GraphError("--search asha decides how many epochs a trial trains; --vary epochs excludes it");
    }
    std::erase_if(plan.words, [](const std::string& word) { return word.starts_with("--epochs="); });
    plan.halving =
        HalvingRule{rungs_between(options.first_rung, epochs_of(options, graph), options.reduction), options.reduction};
    if (plan.halving->epochs.size() == 1) {
      throw GraphError(
          fmt::format("--search asha judges trials first after epoch {}, where their training ends; expected "
                      "more --epochs, or no search",
                      plan.halving->epochs.front()));
    }
  }
  check_names(plan, options, graph);
  check_attributes(plan, options, graph);
  return plan;
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
  const int at_once = options.at_once == 0 && gpus ? std::min(each, kLikelyOnGpu) : each;
  const int threads = thread_count(options.session);
  constexpr int kFewestOfGpu = 4;  // make a GPU's kernels
  SweepSurroundings around;
  around.folder = options.out;
  around.devices = devices;
  around.threads = std::max(gpus ? kFewestOfGpu : 1, threads / most);
  around.shared = std::make_shared<SharedResources>(at_once, threads, gpus);
  return around;
}

// Whether a sweep's best models predict what they have not seen.
bool tells_predictions(const SweepPlan& plan) {
  return !plan.fold.empty() && !plan.finds_rate;
}

// The sweep while it runs: its log, its lines on the terminal, the models that it keeps.
class Sweep {
 public:
  Sweep(const SweepOptions& options, SweepPlan plan, std::optional<SweepRecord> before)
      : options_(options),
        schedule_(int(plan.trials.size()), plan.halving),
        log_(options.out, plan, before.has_value()),
        redraws_(can_redraw(stdout)) {
    record_.plan = std::move(plan);
    if (before) known_ = std::move(before->results);
    if (options.retry) std::erase_if(known_, [](const SweepResult& result) { return !result.error.empty(); });
  }

  // Returns false if it was interrupted.
  bool run(SweepSurroundings around, int most) {
    const std::vector<PlanDevice>& devices = around.devices;
    const bool gpus = devices.front().kind == PlanDevice::Kind::Cuda;
    constexpr int kFirstOnGpu = 4;  // learners at once, before more are tried
    const InterruptHandler interrupt("\narbalest: ending; --resume goes on; once more to stop at once\n");
    std::stop_source ending;
    const std::stop_callback interrupted(interrupt.token(), [&] { ending.request_stop(); });
    const double seconds = options_.session.length.seconds;
    const auto end_early = [&] {
      time_is_up_ = true;
      ending.request_stop();
    };
    const TimedLook limit = seconds > 0 ? look_after(std::chrono::duration<double>(seconds), end_early) : TimedLook();
    around.stop = ending.get_token();
    around.progress = [this](const SweepResult& result) { progress(result); };
    around.noted = [this](int trial, const std::string& note) { tell_note(trial, note); };
    JobLanes lanes(schedule_, most, [&](const SweepJob& job, int lane) { return run_job(job, lane, around); },
                   {[this](int left, const std::string& why) { tell_shrunk(left, why); },
                    [this](const SweepJob& job, const std::string& why) { tell_too_large(job, why); }});
    lanes_ = &lanes;
    const int first = std::max(1, kFirstOnGpu / std::max(1, int(options_.session.learners.per_device)));
    if (options_.at_once == 0 && gpus) tuner_.emplace(first * int(devices.size()), most);
    if (tuner_) lanes.allow(tuner_->lanes());
    lanes.run(ending.get_token());
    lanes_ = nullptr;
    const bool over = schedule_.over();
    if (over || !record_.plan.halving) keep_best();
    clear_status();
    if (over) log_.finished(std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count());
    if (over) remove_checkpoints();
    if (!over && time_is_up_) {
      warn(fmt::format(
          "--time-limit ends the sweep; the same command with --resume goes on, as 'arbalest resume {}' does",
          shell_word(options_.out)));
    }
    return over;
  }

  const SweepRecord& record() const { return record_; }
  bool written() const { return !log_.failed(); }

 private:
  JobEnd run_job(const SweepJob& job, int lane, const SweepSurroundings& around) {
    // The latest: one that failed may have run once more.
    const auto found =
        std::find_if(known_.rbegin(), known_.rend(), [&](const SweepResult& result) { return result.job == job; });
    if (found != known_.rend()) {
      const std::scoped_lock lock(mutex_);
      record_.results.push_back(*found);
      return {JobEnd::Kind::Judged, found->score(), {}};
    }
    {
      const std::scoped_lock lock(mutex_);
      log_.started(job, lane, to_string(around.devices[size_t(lane) % around.devices.size()]));
      under_way_[job.trial] = {};
    }
    TrialEnd trial = run_trial(record_.plan, job, lane, around);
    const std::scoped_lock lock(mutex_);
    ended_images_ += under_way_[job.trial].images;
    under_way_.erase(job.trial);
    if (trial.end.kind != JobEnd::Kind::Judged) return trial.end;
    log_.result(trial.result);
    record_.results.push_back(trial.result);
    tell_result(trial.result);
    // Trials that a search promotes later need their checkpoints, and models of epochs that may remain their best.
    if (record_.plan.halving) return trial.end;
    if (trial.result.error.empty()) remove_checkpoints_of(job.trial);
    keep_best();
    return trial.end;
  }

  void tell_result(const SweepResult& result) {
    clear_status();
    const auto all = record_.plan.trials.size();
    const std::string settings = to_string(record_.plan.trials[size_t(result.job.trial)]);
    std::string text = "no value";
    if (!result.error.empty()) {
      text = "failed: " + result.error;
    } else if (result.value) {
      text = fmt::format("{} {:.5g}", result.metric, *result.value);
      if (result.metric != "loss") text += fmt::format(" in epoch {}", result.epoch);
    } else if (result.loss && !result.validated) {
      text = fmt::format("loss of training {:.5g}", *result.loss);
    }
    const bool within = result.ended_within_epoch();
    const int64_t length = within ? result.iterations : result.epochs;
    fmt::print("{}\n", printable(fmt::format("trial {:>{}}/{}  {}  {}, {} {}{} in {:.1f} s", result.job.trial + 1,
                                             std::to_string(all).size(), all, settings, text, length,
                                             within ? "iteration" : "epoch", length == 1 ? "" : "s", result.seconds)));
    show_status();
    std::fflush(stdout);
  }

  void progress(const SweepResult& result) {
    const std::scoped_lock lock(mutex_);
    under_way_[result.job.trial] = result;
    tune();
    clear_status();
    show_status();
  }

  void tell_shrunk(int at_once, const std::string& why) {
    const std::scoped_lock lock(mutex_);
    clear_status();
    tuner_.reset();  // memory decides
    log_.lanes(at_once, why);
    warn(fmt::format("{} from here on, since there is no memory for more: {}",
                     at_once == 1 ? "one trial trains at a time" : fmt::format("{} trials train at once", at_once),
                     why.substr(0, why.find('\n'))));
  }

  void tell_too_large(const SweepJob& job, const std::string& why) {
    const std::scoped_lock lock(mutex_);
    SweepResult result;
    result.job = job;
    result.error = why;
    log_.result(result);
    record_.results.push_back(result);
    tell_result(result);
  }

  // Lets more trials train at once as long as that raises the throughput of all.
  void tune() {
    if (!tuner_ || tuner_->done()) return;
    int64_t images = ended_images_;
    int training = 0;
    for (const auto& [trial, result] : under_way_) {
      images += result.images;
      training += result.images > 0;
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began_).count();
    if (!tuner_->look(seconds, images, training >= tuner_->lanes())) return;
    lanes_->allow(tuner_->lanes());
    if (tuner_->done()) log_.lanes(tuner_->lanes(), "more at once do not train faster");
  }

  // A note of one trial holds for others, too.
  void tell_note(int trial, const std::string& note) {
    const std::scoped_lock lock(mutex_);
    const bool of_other = !noted_.empty() && noted_.begin()->first != trial;
    if (record_.plan.finds_rate || of_other || !noted_.emplace(trial, note).second) return;
    clear_status();
    warn(note);
  }

  // One line that later ones replace; nothing unless standard output is a terminal.
  void show_status() {
    if (!redraws_) return;
    double rate = 0;
    for (const auto& [trial, result] : under_way_) rate += result.images_per_second;
    std::set<int> under_way;
    for (const auto& [trial, result] : under_way_) under_way.insert(trial);
    const size_t ended = ended_trials(record_, under_way), all = record_.plan.trials.size();
    std::string text =
        fmt::format("{} of {} trials ended, {} under way, {:.0f} images/s", ended, all, under_way_.size(), rate);
    if (const double left = seconds_left(ended); left > 0) text += fmt::format(", about {} left", shown_time(left));
    fmt::print("{}", first_columns(text, terminal_width(stdout) - 1));
    std::fflush(stdout);
    shown_ = true;
  }
  // If others take as long as those that have ended; 0: none has, or a search decides how far they train.
  double seconds_left(size_t ended) const {
    if (record_.plan.halving || ended == 0 || under_way_.empty()) return 0;
    double took = 0, begun = 0;
    for (size_t trial = 0; trial < record_.plan.trials.size(); ++trial) {
      const SweepResult* last = last_result(record_, int(trial));
      if (last != nullptr && !under_way_.contains(int(trial))) took += last->seconds;
    }
    for (const auto& [trial, result] : under_way_) begun += result.seconds;
    const double left = took / double(ended) * double(record_.plan.trials.size() - ended) - begun;
    return left / double(under_way_.size());
  }
  void clear_status() {
    if (std::exchange(shown_, false)) fmt::print("\r\x1b[K");
  }

  // Removes the models of trials that are no longer among the best. Those under way may be better than they were. Folds
  // of the same settings stay or go together, those of the best at least until they have predicted what they held out.
  void keep_best() {
    if (options_.keep == "all") return;
    auto most = size_t(std::stoll(options_.keep));
    std::vector<std::vector<int>> ranked;
    if (!tells_predictions(record_.plan)) {
      if (record_.plan.finds_rate) most = 0;
      for (const int trial : ranked_trials(record_)) ranked.push_back({trial});
    } else {
      most = std::max<size_t>(most, 1);
      const Leaderboard board = leaderboard_of(record_);
      for (const TrialGroup* group : ranked_whole_groups(board, record_)) ranked.push_back(group->trials);
    }
    std::error_code ignored;
    for (size_t place = most; place < ranked.size(); ++place) {
      for (const int trial : ranked[place]) {
        if (!under_way_.contains(trial)) fs::remove(trial_model(options_.out, trial), ignored);
      }
    }
  }

  // Nobody goes on from them, unless the log lacks what they led to.
  void remove_checkpoints_of(int trial) const {
    std::error_code ignored;
    if (!log_.failed()) fs::remove_all(trial_checkpoints(options_.out, trial), ignored);
  }
  void remove_checkpoints() const {
    for (int trial = 0; trial < int(record_.plan.trials.size()); ++trial) {
      const SweepResult* last = last_result(record_, trial);
      if (last && last->error.empty()) remove_checkpoints_of(trial);  // --retry goes on from those of others
    }
  }

  const SweepOptions& options_;
  SweepSchedule schedule_;
  SweepLog log_;
  const bool redraws_;
  SweepRecord record_;
  std::vector<SweepResult> known_;        // of the sweep that this one goes on with
  std::mutex mutex_;                      // of what follows, the log, the record, and standard output
  std::map<int, SweepResult> under_way_;  // by trial
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  JobLanes* lanes_ = nullptr;  // while they run
  std::optional<LaneTuner> tuner_;
  int64_t ended_images_ = 0;                     // of jobs that have ended
  std::set<std::pair<int, std::string>> noted_;  // what has been told of the trial whose notes are
  bool shown_ = false;                           // the status line
  std::atomic<bool> time_is_up_ = false;
};

// The words that the others lack; "none".
std::string words_without(const std::vector<std::string>& words, std::vector<std::string> others) {
  std::vector<std::string> left;
  for (const std::string& word : words) {
    const auto same = std::find(others.begin(), others.end(), word);
    if (same == others.end()) {
      left.push_back(shell_word(word));
    } else {
      others.erase(same);
    }
  }
  return left.empty() ? "none" : fmt::format("{}", fmt::join(left, " "));
}

// The record of the sweep in the folder, which has to be the same as this one; nothing if there is none.
std::optional<SweepRecord> record_before(const SweepOptions& options, SweepPlan& plan) {
  const std::string path = sweep_log_path(options.out);
  std::error_code unknown;
  if (!fs::exists(path, unknown) || fs::file_size(path, unknown) == 0) {
    if (options.session.checkpoints.resume)
      warn(fmt::format("{}: no sweep to go on with; it starts afresh", options.out));
    return std::nullopt;
  }
  if (!options.session.checkpoints.resume) {
    throw GraphError(
        fmt::format("{}: holds a sweep; --resume goes on with it, another one needs another folder", options.out));
  }
  SweepRecord record = read_sweep_log(path);
  warn_of_faults(record.faults);
  if (record.plan == plan) {
    for (const auto& [file, hash] : record.plan.inputs) {
      if (const auto now = plan.inputs.find(file); now != plan.inputs.end() && now->second == hash) continue;
      throw GraphError(
          fmt::format("{}: the sweep there was begun with another content of '{}'; expected the file as it "
                      "was then, or another folder",
                      options.out, file));
    }
    return record;
  }
  const std::string there = words_without(record.plan.words, plan.words),
                    here = words_without(plan.words, record.plan.words);
  std::string differs = fmt::format("the options of its runs (there {}, here {})", there, here);
  if (there == here) differs = "the orders of options that state one setting";
  if (record.plan.has_words_of(plan)) differs = record.plan.trials == plan.trials ? "the search" : "the trials";
  throw GraphError(fmt::format("{}: the sweep there is another one: {} differ; expected the same command line",
                               options.out, differs));
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
  SweepPlan plan = plan_of(options, graph);
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
  Sweep sweep(options, std::move(plan), std::move(before));
  fmt::print("{}, {} at once; logs and models in {}\n", trials_of(sweep.record().plan), lanes, printable(options.out));
  tell_more();
  std::fflush(stdout);
  const bool over = sweep.run(around, lanes);
  print_answer(options, sweep.record());
  around.keeps_samples = false;  // each is read once more
  around.threads = thread_count(options.session);
  const bool told = !over || !tells_predictions(sweep.record().plan) || print_folds(options, sweep.record(), around);
  if (!sweep.written() || !told) return kFailed;
  if (!over) return kInterrupted;
  const Leaderboard board = leaderboard_of(sweep.record());
  const bool good = board.failed == 0 || (sweep.record().plan.finds_rate && board.done > 0);  // rates that are too high
  return good ? kDone : kFailed;
}

void declare_sweep(Subcommands& commands) {
  const auto command =
      commands.add<SweepOptions>("sweep", "train many variants of a graph, several at once", command_sweep);
  CLI::App& app = command.app;
  SweepOptions& options = command.options;
  options.command_line = commands.words();
  bind_training(app, options);
  for (CLI::Option* option : app.get_options([](const CLI::Option* each) { return is_of_trials(*each); })) {
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
