// SPDX-License-Identifier: Apache-2.0
#include "tools/experiment/trials/run_trial.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/files/file.h"
#include "base/files/folder.h"
#include "executor/devices/gpu_meter.h"
#include "tools/command/commands.h"
#include "tools/command/own_variables.h"
#include "tools/experiment/trials/cell_command.h"
#include "tools/experiment/trials/child_process.h"
#include "tools/experiment/trials/machine_state.h"

namespace arbalest {
namespace {

// The words of a trial's process after the program's name, and that program.
struct TrialProcess {
  std::string program;
  std::vector<std::string> words;
};

TrialProcess process_of(const TrialRun& run, const Trial& trial) {
  TrialProcess process{run.program, trial.words};
  std::vector<std::string>& words = process.words;
  const int hosts = hosts_in(trial.cell->settings);
  if (!trial.cell->peer.empty()) {  // in the environment of the bench's user
    std::vector<std::string> without;
    for (const std::string& name : own_variables()) without.insert(without.end(), {"-u", name});
    words.insert(words.begin(), without.begin(), without.end());
    process.program = "/usr/bin/env";
    return process;
  }
  if (trial.measure == Measure::Accuracy) {
    const AccuracyRule& rule = *run.file.accuracy;
    words.insert(words.end(), {"--checkpoint", (run.folder / "checkpoints").string(), "--checkpoint-every",
                               rule.checkpoint_every, "--resume", "--log", (run.folder / "log.jsonl").string()});
    if (rule.mllog) words.insert(words.end(), {"--mllog", (run.folder / "mllog.txt").string()});
    if (rule.mllog && !rule.targets.empty()) {
      words.insert(words.end(), {"--mllog-target", to_string(targets_of(rule).back())});
    }
    for (const std::string& entry : rule.mllog.value_or(std::vector<std::string>())) {
      words.insert(words.end(), {"--mllog-set", entry});
    }
  }
  if (hosts > 1) {
    words.insert(words.begin(), {"srun", "--mpi=none", "--nodes", std::to_string(hosts), "--ntasks",
                                 std::to_string(hosts), process.program});
    process.program = "/usr/bin/env";
  }
  return process;
}

}  // namespace

std::string why_failed(const ChildEnd& end) {
  const std::string how = end.signal != 0 ? fmt::format("crashed ({})", strsignal(end.signal))
                                          : fmt::format("ended with status {}", end.status);
  std::string said = error_in(end.output);
  if (said.empty()) said = last_line(end.errors);
  if (said.empty()) return how + ", and said nothing";
  return end.signal != 0 ? how + ": " + said : said;
}

std::optional<TrialResult> run_trial(const TrialRun& run, const Trial& trial, const std::stop_token& stop,
                                     std::string& why) {
  TrialResult result = result_for(trial);
  const int hosts = hosts_in(trial.cell->settings);
  if (hosts > 1 && !std::getenv("SLURM_JOB_ID")) {
    why = fmt::format("takes {} hosts, which a batch queue has; --slurm DIR writes a script for it", hosts);
    return std::nullopt;
  }
  result.lower = run.file.accuracy && run.file.accuracy->lower;
  const std::vector<PlanDevice> devices = devices_of(*trial.cell);
  result.state = record_of(look_at_machine(devices));
  const bool peer = !trial.cell->peer.empty();
  const bool training = trial.measure == Measure::Accuracy && !peer;
  if (training) make_folders(run.folder);
  const TrialProcess process = process_of(run, trial);
  const bool meters = trial.measure == Measure::Accuracy && hosts == 1;
  const GpuMeter gpus(meters ? devices : std::vector<PlanDevice>());
  const std::optional<double> before = gpus.read().joules;
  const ChildEnd end = run_child(process.program, process.words, stop);
  if (const std::optional<double> after = gpus.read().joules; before && after) {
    result.joules = std::max(0.0, *after - *before);
  }
  if (trial.measure == Measure::Accuracy) result.command_seconds = end.seconds;
  const std::set<int> crashes = {SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL};
  const bool crashed = crashes.contains(end.signal);
  if (stop.stop_requested() || (end.signal != 0 && !crashed) || end.status == kInterrupted) {
    why = fmt::format("was ended from outside{}; it runs again with the next command",
                      end.signal != 0 ? fmt::format(" ({})", strsignal(end.signal)) : "");
    return std::nullopt;
  }
  try {
    if (crashed) {
      result.error = why_failed(end);
    } else if (peer && end.status == kDone) {
      read_peer(end.output, end.seconds, run.file.accuracy, result);
    } else if (training && end.status == kDone) {
      read_training(read_text(run.folder / "log.jsonl"), *run.file.accuracy, result);
    } else if (!training && !peer && (end.status == kDone || !end.output.empty())) {
      read_throughput(end.output, result);
    } else {
      result.error = why_failed(end);
    }
  } catch (const std::exception& error) {
    result.error = fmt::format("{} (status {})", error.what(), end.status);
    if (!end.errors.empty()) result.error += ": " + last_line(end.errors);
  }
  return result;
}

}  // namespace arbalest
