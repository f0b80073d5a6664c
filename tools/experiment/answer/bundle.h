// SPDX-License-Identifier: Apache-2.0
#pragma once
// A bench to publish: one archive of the file, its graphs, results, logs, tables, page and environment.

#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "tools/experiment/trials/results.h"

namespace arbalest {

// A folder of runs: those that the bench itself made, or those of collected results.
struct RunFolder {
  std::filesystem::path path;  // with a folder for each trial, called as its key
  std::string name;            // in the archive's "results"; "": there itself
};

// The machines that results were measured on, as far as results tell them apart: devices, build and software, with the
// number of their trials and what disturbed these.
nlohmann::ordered_json machines_of(const std::vector<TrialResult>& results);

struct BenchBundle {
  std::string name;                                        // of the folder that the archive holds
  std::vector<std::filesystem::path> inputs;               // the bench file, graphs and models
  std::filesystem::path results;                           // JSON lines
  std::vector<RunFolder> runs;                             // logs and quotes
  std::vector<std::pair<std::string, std::string>> texts;  // further files: name and content
};

// Writes a tar archive, the same bytes for the same content. Inputs lie in "files", as far apart as they are on the
// disk, so that the bench file finds its graphs. Checkpoints and profiles are left out. Returns the keys of the runs
// whose logs it holds. Throws RunError.
std::set<std::string> write_bundle(const std::filesystem::path& path, const BenchBundle& bundle);

}  // namespace arbalest
