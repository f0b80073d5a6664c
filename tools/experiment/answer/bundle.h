// SPDX-License-Identifier: Apache-2.0
#pragma once
// A bench to publish: one archive of the file, its graphs, results, logs, tables, page and environment.

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace arbalest {

struct BenchBundle {
  std::string name;                                        // of the folder that the archive holds
  std::vector<std::filesystem::path> inputs;               // the bench file, graphs and models
  std::filesystem::path results;                           // JSON lines
  std::filesystem::path runs;                              // the folder of logs and quotes
  std::vector<std::pair<std::string, std::string>> texts;  // further files: name and content
};

// Writes a tar archive, the same bytes for the same content. Inputs lie in "files", as far apart as they are on the
// disk, so that the bench file finds its graphs. Checkpoints and profiles are left out. Throws RunError.
void write_bundle(const std::filesystem::path& path, const BenchBundle& bundle);

}  // namespace arbalest
