// SPDX-License-Identifier: Apache-2.0
#pragma once
// The folder that holds a run's checkpoints: checkpoint-000000000500.safetensors is that after iteration 500.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/files/output_lock.h"
#include "executor/training/checkpoint.h"
#include "executor/world/ranks.h"

namespace arbalest {

class CheckpointFolder {
 public:
  // Makes the folder if it is missing, and holds it for this process. Removes temporary files that killed runs left.
  // Throws RunError if it cannot be made or written to, or if another process holds it.
  explicit CheckpointFolder(const std::string& folder);

  std::filesystem::path path_of(int64_t iteration) const;
  // Removes all checkpoints up to iteration `latest` but the newest `keep` of them and that after iteration `best`.
  // Other files stay, and so do those after later iterations: the run went on from an earlier one, so that they are
  // damaged.
  void prune(int64_t latest, int64_t keep, int64_t best) const;

 private:
  std::filesystem::path folder_;
  std::optional<OutputLock> held_;
};

// All files with a checkpoint's name, the newest first; none if there is no such folder. Throws RunError if the folder
// cannot be listed.
std::vector<std::filesystem::path> checkpoints_in(const std::filesystem::path& folder);

// For a run that starts afresh. Throws GraphError if the folder has checkpoints.
void check_has_none(const std::filesystem::path& folder);

// The newest that is whole; says on standard error why newer ones are not taken. nullptr: the folder has none. Throws
// GraphError, with each one's fault, if none of those that it has can be read.
std::shared_ptr<const CheckpointFile> newest_checkpoint(const std::filesystem::path& folder);

// The newest that is whole, finite and after fewer iterations than `before`. nullptr: there is none.
std::shared_ptr<const CheckpointFile> newest_finite_checkpoint(const std::filesystem::path& folder, int64_t before);

// The checkpoint that `find` returns at rank 0, which reads it; the other ranks read the same file. nullptr: `find` has
// found none. Every rank calls this; `ranks` is nullptr for a process that is alone.
std::shared_ptr<const CheckpointFile> found_by_first(
    Ranks* ranks, const std::function<std::shared_ptr<const CheckpointFile>()>& find);

// Removes those of later iterations; a run that has gone back would otherwise go on from them.
void remove_after(const std::filesystem::path& folder, int64_t iteration);

}  // namespace arbalest
