// SPDX-License-Identifier: Apache-2.0
#include "tools/experiment/trials/queue_script.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/file.h"
#include "base/files/folder.h"
#include "base/shell_word.h"
#include "executor/plan/plan.h"
#include "tools/experiment/trials/cell_command.h"

namespace arbalest {
namespace {

// Throws GraphError if the cell names a GPU that a job with so many does not see: SLURM numbers those of a job from 0.
void check_numbers(const BenchCell& cell, int64_t gpus) {
  const std::string devices = setting_of(cell.settings, "devices");
  if (devices.empty() || devices == "auto") return;
  for (const PlanDevice& device : devices_of(cell)) {
    if (device.kind != PlanDevice::Kind::Cuda || device.index < gpus) continue;
    throw GraphError(
        fmt::format("--slurm: {}: found devices = {} and {} GPU{} for each task, which SLURM numbers from 0; expected "
                    "numbers below {}, or gpus_per_task = {} in [slurm]",
                    cell.name, devices, gpus, gpus == 1 ? "" : "s", gpus, device.index + 1));
  }
}

// Each number of hosts, and of GPUs on each, with the cells that take so many.
using CellsByNeed = std::map<std::pair<int, int64_t>, std::vector<const BenchCell*>>;

CellsByNeed cells_by_need(const BenchFile& file, const BenchCells& cells) {
  CellsByNeed found;
  for (const BenchCell& cell : cells.cells) {
    const std::string devices = setting_of(cell.settings, "devices");
    const bool on_gpus = devices == "auto" || devices.find("cuda") != devices.npos;
    const int64_t gpus = file.queue.gpus_per_task >= 0 ? file.queue.gpus_per_task
                         : on_gpus                     ? device_count(cell.settings)
                                                       : 0;
    if (file.queue.gres.empty()) check_numbers(cell, gpus);
    found[{hosts_in(cell.settings), gpus}].push_back(&cell);
  }
  return found;
}

// A line of options, left out without a value.
std::string option(const char* name, const std::string& value) {
  const auto ends_quote = [](unsigned char c) { return c < ' ' || c == '"' || c == '\'' || c == '\\'; };
  if (std::any_of(value.begin(), value.end(), ends_quote)) {
    throw GraphError(fmt::format("--slurm: {}: found '{}', expected no quotes, backslashes and ends of lines", name,
                                 printable(value)));
  }
  return value.empty() ? "" : fmt::format("#SBATCH --{}=\"{}\"\n", name, value);
}

std::string header(const BenchFile& file, const QueueScript& script, const QueuePaths& paths) {
  const QueueSettings& queue = file.queue;
  const std::string outputs = (std::filesystem::path(paths.folder) / "output").string();
  std::string text = "#!/usr/bin/env bash\n";
  text += option("job-name", std::filesystem::path(file.path).stem().string());
  text += option("array", fmt::format("0-{}%{}", script.elements - 1, queue.at_once));
  text += option("account", queue.account) + option("partition", queue.partition) + option("qos", queue.qos);
  text += option("constraint", queue.constraint);
  text += option("nodes", std::to_string(script.hosts)) + option("ntasks-per-node", "1");
  text += queue.gres.empty() ? option("gpus-per-task", script.gpus > 0 ? std::to_string(script.gpus) : "")
                             : option("gres", queue.gres);
  text += option("cpus-per-task", queue.cpus_per_task > 0 ? std::to_string(queue.cpus_per_task) : "");
  text += option("time", queue.time) + option("signal", fmt::format("B:USR1@{}", queue.signal_seconds));
  text += "#SBATCH --requeue\n" + option("open-mode", "append");
  return text + option("output", outputs + "/%A_%a.out") + option("chdir", paths.working_folder);
}

std::string script_text(const BenchFile& file, const QueueScript& script, const std::vector<const BenchCell*>& cells,
                        const std::vector<std::string>& changes, const QueuePaths& paths) {
  const QueueSettings& queue = file.queue;
  if (script.hosts > 1 && !(queue.apptainer.empty() && queue.pyxis.empty())) {
    throw GraphError(
        fmt::format("[slurm]: {}: the bench starts cells of several hosts by srun, which an image does not have; "
                    "expected hosts = 1 or no image",
                    queue.apptainer.empty() ? "pyxis" : "apptainer"));
  }
  std::string text = header(file, script, paths);
  text += "set -euo pipefail\n\n";
  for (const std::string& module : queue.modules) text += fmt::format("module load {}\n", shell_word(module));
  text +=
      "# srun takes the number of cores from this variable alone since SLURM 22.05.\n"
      "[ -z \"${SLURM_CPUS_PER_TASK:-}\" ] || export SRUN_CPUS_PER_TASK=\"$SLURM_CPUS_PER_TASK\"\n";
  for (const std::string& line : queue.setup) text += line + "\n";
  if (script.hosts > 1) {
    text +=
        "# Ranks prove to each other that they know it; srun hands the variable on.\n"
        "ARBALEST_SECRET=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \\n')\nexport ARBALEST_SECRET\n";
  }
  text += "\ncells=(\n";
  for (const BenchCell* cell : cells) text += fmt::format("  {}  # {}\n", cell->id, printable(cell->name));
  text += ")\ncell=${cells[$SLURM_ARRAY_TASK_ID]}\n\n";
  std::string command = shell_word(paths.program);
  if (!queue.apptainer.empty())
    command = fmt::format("apptainer exec --nv {} {}", shell_word(queue.apptainer), command);
  // The bench itself starts the ranks of several hosts.
  if (script.hosts == 1) {
    const std::string image = queue.pyxis.empty() ? "" : " --container-image=" + shell_word(queue.pyxis);
    command = fmt::format("srun --mpi=none{} {}", image, command);
  }
  command += " bench " + shell_word(file.path);
  for (const std::string& change : changes) command += " --set " + shell_word(change);
  const std::string results = shell_word((std::filesystem::path(paths.folder) / "results").string());
  text += fmt::format(
      "{} --cell \"$cell\" --results {}/\"$cell\".jsonl --anyway &\n"
      "bench=$!\n"
      "# The queue's signal goes to this shell, which hands it on; the bench then ends with a checkpoint.\n"
      "trap 'told=1; kill -USR1 \"$bench\" || true' USR1\n"
      "status=0 told=\n"
      "wait \"$bench\" || status=$?\n"
      "while [ -n \"$told\" ]; do  # the signal has ended the wait\n"
      "  status=0 told=\n"
      "  wait \"$bench\" || status=$?\n"
      "done\n\n"
      "# 130: the time was over, and the cell goes on from where it is.\n"
      "if [ \"$status\" -eq 130 ]; then\n"
      "  scontrol requeue \"${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}\"\n"
      "fi\n"
      "exit \"$status\"\n",
      command, results);
  return text;
}

// Removes the scripts that an earlier call has written: their cells may have changed, or have others now.
void remove_scripts(const std::filesystem::path& folder, const std::string& name) {
  constexpr std::string_view kEnd = ".sbatch";
  std::vector<std::filesystem::path> earlier;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string file = entry.path().filename().string();
    if (!file.starts_with(name) || !file.ends_with(kEnd) || file.size() < name.size() + kEnd.size()) continue;
    const std::string need = file.substr(name.size(), file.size() - name.size() - kEnd.size());
    int hosts = 0, gpus = 0, length = 0;
    const bool numbered = std::sscanf(need.c_str(), "-%dx%d%n", &hosts, &gpus, &length) == 2;
    if (!need.empty() && (!numbered || size_t(length) != need.size())) continue;
    // "b-1x2.toml" has a name that a script of "b.toml" may have.
    if (read_text(entry.path()).find(option("job-name", name)) != std::string::npos) earlier.push_back(entry.path());
  }
  for (const auto& path : earlier) std::filesystem::remove(path);
}

}  // namespace

std::vector<QueueScript> slurm_scripts(const BenchFile& file, const BenchCells& cells,
                                       const std::vector<std::string>& changes, const QueuePaths& paths) {
  std::vector<QueueScript> scripts;
  for (const auto& [need, own] : cells_by_need(file, cells)) {
    QueueScript& script = scripts.emplace_back(QueueScript{need.first, need.second, own.size(), ""});
    script.text = script_text(file, script, own, changes, paths);
  }
  return scripts;
}

void write_queue_scripts(const BenchFile& file, const BenchCells& cells, const std::vector<std::string>& changes,
                         const QueuePaths& paths, const std::string& name) {
  const std::filesystem::path folder = paths.folder;
  BenchFile placed = file;
  placed.path = std::filesystem::absolute(file.path).lexically_normal().string();
  const std::vector<QueueScript> scripts = slurm_scripts(placed, cells, changes, paths);
  for (const char* inner : {"output", "results"}) make_folders(folder / inner);
  remove_scripts(folder, name);
  for (const QueueScript& script : scripts) {
    const std::string need = scripts.size() == 1 ? "" : fmt::format("-{}x{}", script.hosts, script.gpus);
    const std::string path = (folder / (name + need + ".sbatch")).string();
    AtomicFile written(path);
    written.write(script.text);
    written.commit();
    fmt::print("{}: {} elements; sbatch {}\n", printable(path), script.elements, shell_word(path));
  }
}

}  // namespace arbalest
