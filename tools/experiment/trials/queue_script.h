// SPDX-License-Identifier: Apache-2.0
#pragma once
// A script for SLURM that measures the cells of a bench in an array job.

#include <string>
#include <vector>

#include "tools/experiment/cells/bench_file.h"
#include "tools/experiment/cells/cells.h"

namespace arbalest {

// The paths in a script; all are absolute.
struct QueuePaths {
  std::string program;         // arbalest
  std::string folder;          // of the script, its outputs and the results
  std::string working_folder;  // that relative paths in the file are taken from
};

// A script for the cells that take as many hosts and GPUs.
struct QueueScript {
  int hosts = 1;
  int64_t gpus = 0;  // of each host
  size_t elements = 0;
  std::string text;
};

// Makes the scripts, one for each number of hosts and GPUs, so that no cell reserves what another needs. An element is
// a cell with its sides of other programs. It keeps its results in FOLDER/results/ID.jsonl, ID being the first cell's,
// so that it may be ended at any time and goes on when it is queued again. `changes`: --set of the command line. Cells
// of several hosts are started by srun on each. In an image the folders that elements need are mounted. Throws
// GraphError for a value that cannot stand in a line of options, for an image with cells of several hosts, and for a
// GPU with a number that its job does not have.
std::vector<QueueScript> slurm_scripts(const BenchFile& file, const BenchCells& cells,
                                       const std::vector<std::string>& changes, const QueuePaths& paths);

// Writes the scripts NAME.sbatch to paths.folder, with the folders that they need, in place of those that an earlier
// call has written for the file, and prints their paths. Throws RunError if they cannot be written.
void write_queue_scripts(const BenchFile& file, const BenchCells& cells, const std::vector<std::string>& changes,
                         const QueuePaths& paths, const std::string& name);

}  // namespace arbalest
