// SPDX-License-Identifier: Apache-2.0
#pragma once
// The folder that holds a run's checkpoints: checkpoint-000000000500.safetensors is that after iteration 500. Next to
// it lie the files of other ranks, checkpoint-000000000500.rank-1.TAG.safetensors.

#include <chrono>
#include <cstdint>
#include <filesystem>
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
  // Makes the folder if it is missing, and holds it for this process. Removes what killed runs left: temporary files,
  // and parts up to the newest checkpoint that belong to none. Throws RunError if it cannot be made or written to, or
  // if another process holds it. `holds`: false for a rank that writes into a folder that rank 0 holds, and does none
  // of this.
  explicit CheckpointFolder(const std::string& folder, bool holds = true);
  ~CheckpointFolder();
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  std::filesystem::path path_of(int64_t iteration) const;
  // Removes all checkpoints up to iteration `latest` but the newest `keep` of them and that after iteration `best`, and
  // up to there parts that belong to none, and what killed ranks left. Other files stay, and so do those after later
  // iterations: the run went on from an earlier one, so that they are damaged.
  void prune(int64_t latest, int64_t keep, int64_t best) const;
  // Leaves a file in the folder, as long as it is held, by which others see that they have the same one. Returns its
  // name. Throws RunError.
  std::string mark();

 private:
  std::filesystem::path folder_, mark_;
  std::optional<OutputLock> held_;
};

// The folder of a run, which rank 0 holds. Each rank calls this with its own option --checkpoint; nullptr: that is
// empty. Throws GraphError, on all ranks alike, if one does not see within `patience` what rank 0 has left in the
// folder, or cannot write there.
std::shared_ptr<const CheckpointFolder> open_checkpoints(const std::string& folder, Ranks* ranks,
                                                         std::chrono::seconds patience = std::chrono::seconds(60));

// Whether the file is there, or comes to be: a file system of several hosts may show late what another one has made.
bool comes_to_be(const std::filesystem::path& path, std::chrono::seconds patience);

// All files with a checkpoint's name, the newest first; none if there is no such folder. Throws RunError if the folder
// cannot be listed.
std::vector<std::filesystem::path> checkpoints_in(const std::filesystem::path& folder);

// For a run that starts afresh. Throws GraphError if the folder has checkpoints.
void check_has_none(const std::filesystem::path& folder);

// The newest that is whole; says on standard error why newer ones are not taken. nullptr: the folder has none. Throws
// GraphError, with each one's fault, if none of those that it has can be read. With several ranks all call this: rank 0
// says which ones there are, each rank reads rank 0's file and a share of the parts, and all take the same one. A rank
// that comes back reads nothing: it gets from rank 0 all but the tensors.
std::shared_ptr<const CheckpointFile> newest_checkpoint(const std::filesystem::path& folder, Ranks* ranks = nullptr);

// The newest that is whole, finite and after fewer iterations than `before`. nullptr: there is none.
std::shared_ptr<const CheckpointFile> newest_finite_checkpoint(const std::filesystem::path& folder, int64_t before,
                                                               Ranks* ranks = nullptr);

// The newest as above. If rank 0 has gone back to that before, `gone_back_to`, the one before it: the run has made no
// other since it began there, so it may already have been on the way to the divergence. Other ranks need not know.
std::shared_ptr<const CheckpointFile> checkpoint_to_go_back_to(const std::filesystem::path& folder, int64_t before,
                                                               int64_t gone_back_to, Ranks* ranks);

// The newest of which rank 0's file is whole, without the parts of other ranks. Throws as newest_checkpoint() does.
std::shared_ptr<const CheckpointFile> newest_of_first(const std::filesystem::path& folder);

// Removes those of later iterations; a run that has gone back would otherwise go on from them.
void remove_after(const std::filesystem::path& folder, int64_t iteration);

}  // namespace arbalest
