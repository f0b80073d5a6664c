// SPDX-License-Identifier: Apache-2.0
#include "tools/experiment/trials/queue_script.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>
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

// The number of GPUs that a task needs for the cell's GPUs to have their numbers, since SLURM numbers a job's from 0.
int64_t gpus_numbered(const BenchCell& cell) {
  const std::string devices = setting_of(cell.settings, "devices");
  int64_t most = 0;
  if (devices.empty() || devices == "auto") return most;
  for (const PlanDevice& device : devices_of(cell)) {
    if (device.kind == PlanDevice::Kind::Cuda) most = std::max<int64_t>(most, device.index + 1);
  }
  return most;
}

// Throws GraphError if the cell names a GPU that a job with so many does not see.
void check_numbers(const BenchCell& cell, int64_t gpus, const BenchCells& all) {
  if (gpus_numbered(cell) <= gpus) return;
  int64_t enough = 0;
  for (const BenchCell& each : all.cells) enough = std::max(enough, gpus_numbered(each));
  throw GraphError(
      fmt::format("--slurm: {}: found devices = {} and {} GPU{} for each task, which SLURM numbers from 0; expected "
                  "numbers below {}, or gpus_per_task = {} in [slurm]",
                  cell.name, setting_of(cell.settings, "devices"), gpus, gpus == 1 ? "" : "s", gpus, enough));
}

// A cell with its sides of other programs, whose trials take turns.
using Element = std::vector<const BenchCell*>;
// Each number of hosts, and of GPUs on each, with the elements that take so many.
using ElementsByNeed = std::map<std::pair<int, int64_t>, std::vector<Element>>;

ElementsByNeed elements_by_need(const BenchFile& file, const BenchCells& cells) {
  ElementsByNeed found;
  for (const BenchCell& cell : cells.cells) {
    const std::string devices = setting_of(cell.settings, "devices");
    const bool on_gpus = devices == "auto" || devices.find("cuda") != devices.npos;
    const int64_t gpus = file.queue.gpus_per_task >= 0 ? file.queue.gpus_per_task
                         : on_gpus                     ? device_count(cell.settings)
                                                       : 0;
    if (file.queue.gres.empty()) check_numbers(cell, gpus, cells);
    std::vector<Element>& elements = found[{hosts_in(cell.settings), gpus}];
    if (elements.empty() || elements.back().front()->place != cell.place) elements.emplace_back();
    elements.back().push_back(&cell);
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
  if (!queue.gres.empty()) {
    text += option("gres", queue.gres);
  } else if (script.gpus > 0) {  // SLURM 23.11 and later refuse GPUs of tasks without a number of tasks
    text += option("ntasks", std::to_string(script.hosts)) + option("gpus-per-task", std::to_string(script.gpus));
  }
  text += option("cpus-per-task", queue.cpus_per_task > 0 ? std::to_string(queue.cpus_per_task) : "");
  text += option("time", queue.time) + option("signal", fmt::format("B:USR1@{}", queue.signal_seconds));
  text += "#SBATCH --requeue\n" + option("open-mode", "append");
  return text + option("output", outputs + "/%A_%a.out") + option("chdir", paths.working_folder);
}

// The path within the text of a data source, "folder:/data/photos?size=32"; "": it has none.
std::string path_of_source(const std::string& source) {
  const size_t begin = source.find(':');
  return begin == source.npos ? "" : source.substr(begin + 1, source.find('?') - begin - 1);
}

// The folders that elements need in an image: those of the program with its library, of the files and of the results.
// A program of the system is the image's own. None is within another, and each is on this machine.
std::vector<std::string> needed_folders(const BenchFile& file, const std::vector<Element>& elements,
                                        const QueuePaths& paths) {
  namespace fs = std::filesystem;
  std::set<fs::path> wanted;
  const auto want = [&](const fs::path& path) {
    const fs::path plain = path.lexically_normal();
    wanted.insert(plain.has_filename() ? plain : plain.parent_path());
  };
  for (const std::string& path : {paths.folder, paths.working_folder}) want(path);
  want(fs::path(file.path).parent_path());
  const fs::path program = fs::path(paths.program).parent_path().parent_path();
  if (program != "/usr" && program != "/usr/local") want(program);
  for (const Element& element : elements) {
    const Settings& settings = element.front()->settings;
    for (const char* name : {"graph", "weights"}) want(fs::path(setting_of(settings, name)).parent_path());
    want(path_of_source(setting_of(settings, "data")));
  }
  std::vector<std::string> folders;
  for (const fs::path& path : wanted) {  // a folder stands before those within it
    std::error_code unknown;
    const bool inside = std::any_of(folders.begin(), folders.end(), [&](const std::string& folder) {
      return path == folder || path.string().starts_with(folder + "/");
    });
    if (!path.is_absolute() || path == path.root_path() || inside || !fs::exists(path, unknown)) continue;
    folders.push_back(path.string());
    if (folders.back().find_first_of(",:") != std::string::npos) {
      throw GraphError(
          fmt::format("--slurm: found '{}', which an image needs; expected a path without ',' and ':', "
                      "which stand between mounts",
                      printable(folders.back())));
    }
  }
  return folders;
}

// The words before the program in an image, with what it is called by; "" without an image.
std::string image_words(const BenchFile& file, const std::vector<Element>& elements, const QueuePaths& paths) {
  const QueueSettings& queue = file.queue;
  if (queue.apptainer.empty() && queue.pyxis.empty()) return "";
  std::vector<std::string> mounts;
  for (const std::string& folder : needed_folders(file, elements, paths)) mounts.push_back(folder + ":" + folder);
  for (const std::string& mount : queue.mounts) {
    mounts.push_back(mount.find(':') == mount.npos ? mount + ":" + mount : mount);
  }
  const std::string all = shell_word(fmt::format("{}", fmt::join(mounts, ","))),
                    there = shell_word(paths.working_folder);
  if (!queue.pyxis.empty()) {
    return fmt::format("--container-image={} --container-mounts={} --container-workdir={} ", shell_word(queue.pyxis),
                       all, there);
  }
  return fmt::format("apptainer exec --nv --bind {} --pwd {} {} ", all, there, shell_word(queue.apptainer));
}

// The lines before the bench that the file states. Modules and scripts of users may read variables that are not set.
std::string lines_before(const QueueSettings& queue) {
  std::string text = "set -eo pipefail\n\n";
  for (const std::string& module : queue.modules) text += fmt::format("module load {}\n", shell_word(module));
  text +=
      "# srun takes the number of cores from this variable alone since SLURM 22.05.\n"
      "[ -z \"${SLURM_CPUS_PER_TASK:-}\" ] || export SRUN_CPUS_PER_TASK=\"$SLURM_CPUS_PER_TASK\"\n";
  for (const std::string& line : queue.setup) text += line + "\n";
  return text + "set -u\n";
}

std::string script_text(const BenchFile& file, const QueueScript& script, const std::vector<Element>& elements,
                        const std::vector<std::string>& changes, const QueuePaths& paths) {
  const QueueSettings& queue = file.queue;
  if (script.hosts > 1 && !(queue.apptainer.empty() && queue.pyxis.empty())) {
    throw GraphError(
        fmt::format("[slurm]: {}: the bench starts cells of several hosts by srun, which an image does not have; "
                    "expected hosts = 1 or no image",
                    queue.apptainer.empty() ? "pyxis" : "apptainer"));
  }
  std::string text = header(file, script, paths);
  text += lines_before(queue);
  if (script.hosts > 1) {
    text +=
        "# Ranks prove to each other that they know it; srun hands the variable on.\n"
        "ARBALEST_SECRET=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \\n')\nexport ARBALEST_SECRET\n";
  }
  text += "\ncells=(\n";
  for (const Element& element : elements) {
    std::vector<std::string> ids, names;
    for (const BenchCell* cell : element) {
      ids.push_back(cell->id);
      names.push_back(printable(cell->name));
    }
    text += fmt::format("  {}  # {}\n", shell_word(fmt::format("{}", fmt::join(ids, " "))), fmt::join(names, "; "));
  }
  text += ")\nasked=()\nfor cell in ${cells[$SLURM_ARRAY_TASK_ID]}; do asked+=(--cell \"$cell\"); done\n\n";
  std::string command = image_words(file, elements, paths) + shell_word(paths.program);
  // The bench itself starts the ranks of several hosts.
  if (script.hosts == 1) command = "srun --mpi=none " + command;
  command += " bench " + shell_word(file.path);
  for (const std::string& change : changes) command += " --set " + shell_word(change);
  const std::string results = shell_word((std::filesystem::path(paths.folder) / "results").string());
  text += fmt::format(
      "{} \"${{asked[@]}}\" --results {}/\"${{asked[1]}}\".jsonl --anyway &\n"
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
  for (const auto& [need, own] : elements_by_need(file, cells)) {
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
