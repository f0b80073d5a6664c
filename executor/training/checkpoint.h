// SPDX-License-Identifier: Apache-2.0
#pragma once
// A checkpoint: all that a run is between two iterations, as a file, or as one of each rank. Weights, slots and
// averages are tensors under the names of the graph's parameters; everything else is JSON in the metadata of rank 0's
// file; each file has a sum of all that it holds.

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "executor/segment/segment_snapshot.h"
#include "executor/session/event_queue.h"
#include "executor/session/learner_tuner.h"
#include "executor/session/monitor.h"
#include "executor/session/state.h"

namespace arbalest {

// The identity of a run: a run that goes on from another's checkpoint has the same.
struct RunIdentity {
  std::vector<std::pair<std::string, std::string>> settings;  // by name
  std::vector<std::string> graph;                             // a line for each node, and for each parameter
  std::vector<std::string> class_names;                       // by index; empty: numbers, or an earlier version's
};

// "batch: 32 in the checkpoint, 64 here", a line each, at most `most` of them; none: both are of one run.
std::vector<std::string> differences(const RunIdentity& checkpoint, const RunIdentity& here, size_t most = 8);

// The files that ranks but the first have written of a checkpoint. Rank 0's file names them, and is there once they
// are.
struct CheckpointParts {
  std::string tag;  // 16 hexadecimal digits, drawn for each checkpoint: its files have it, and no others
  struct Part {
    int64_t first_learner = 0, learners = 0;
    int32_t host = kNone;  // whose averages it has; kNone: it has none
  };
  std::vector<Part> of_ranks;  // from rank 1 on; empty: the checkpoint is one file
};

// The tensors of a checkpoint that a rank goes on from.
struct CheckpointNeeds {
  bool all = true;
  // Otherwise, besides those that are of no learner and no host:
  int64_t first_learner = 0, learners = 0;
  std::set<int32_t> hosts = {};  // whose averages

  bool has(std::string_view tensor) const;
  bool any_of(const CheckpointParts::Part& part) const;
};

struct Checkpoint {
  RunIdentity identity;
  std::vector<std::string> changes;  // of the learning rate: CheckpointOptions::changes, earlier ones first
  std::vector<std::string> command;  // as the run was started, and in which folder
  std::string folder;
  StrategyOptions strategy;  // how the learners agree
  Cursor next;               // where a run with another number of learners goes on
  double total_epochs = 0;   // of the run, for schedules
  RunPosition position;
  RunEnd ended = RunEnd::Unknown;  // why the run came to its end with this checkpoint; Unknown: it goes on
  SegmentSnapshot segment;
  MonitorState monitor;
  HeldBack held;
  std::optional<LearnerTuner::State> tuner;
  bool keeps_validated = false;  // the model of the latest validation is kept:
  ModelState validated;
  RunPosition validated_at;
  CheckpointParts parts;
};

// A file that has been read and holds what was written into it.
struct CheckpointFile {
  std::string path;       // rank 0's, where there are several
  Checkpoint checkpoint;  // without the tensors
  TensorFile tensors;     // of this file, and of the parts but:
  std::set<size_t> left;  // ranks whose parts have not been read
};

// How a program's arenas lie in memory, so that their tensors have names and shapes of their own.
class CheckpointLayout {
 public:
  explicit CheckpointLayout(const Loop& training);

  // The tensors of the arrays that the checkpoint has, which are given up.
  std::vector<NamedTensor> encode(Checkpoint checkpoint) const;

  // Reads the tensors that are needed into the checkpoint, of which all else is known; those of parts that are left are
  // read from their files. Throws RunError if there are not just the tensors that the program needs, in their shapes.
  void decode(const CheckpointFile& file, Checkpoint& checkpoint, const CheckpointNeeds& needs = {}) const;

  // The first array of weights, statistics, averages or sums that holds something infinite or not a number, by its
  // place in the file; "" if there is none. Slots do not count: a run may go on with a square that is infinite.
  // If updates may be skipped, sums and statistics in the middle of one may be anything: weights and averages count.
  std::string not_finite(Checkpoint& checkpoint) const;

 private:
  struct Array;
  std::vector<Array> arrays_of(Checkpoint& checkpoint) const;
  int64_t floats_of(const std::vector<ArenaMember>& members) const;

  std::vector<ArenaMember> weights_, statistics_, frozen_;
  bool skips_ = false;
  int64_t weight_bytes_ = 0, statistic_bytes_ = 0, frozen_bytes_ = 0;
  std::vector<std::string> slots_;
  struct Kept {
    std::string name;
    DataType type;
    int64_t bytes, before;  // as in Array
  };
  std::vector<Kept> kept_;
};

// Puts what is no tensor into the file's metadata, and the sum that it is held against when it is read.
void seal(TensorFile& file, const std::string& state);

// Reads the file, and the parts of ranks that `reads` says; {}: of all. Throws RunError if it cannot be read, is no
// checkpoint, or is not whole: a part is missing, damaged or of another checkpoint.
CheckpointFile read_checkpoint(const std::filesystem::path& path, const std::function<bool(size_t rank)>& reads = {});

// True if all values that training goes on from, of what has been read, are finite.
bool is_finite(const CheckpointFile& file);

// Thrown if an array that a checkpoint would hold is not finite.
class NotFiniteError : public RunError {
 public:
  NotFiniteError(const std::filesystem::path& path, std::string array);
  const std::string& array() const { return array_; }  // as CheckpointLayout::not_finite() names it

 private:
  std::string array_;
};

// Replaces the file atomically. Throws RunError if it cannot be written, NotFiniteError if no run could go on from it.
// `written`: see write_safetensors().
void write_checkpoint(const std::filesystem::path& path, const CheckpointLayout& layout, Checkpoint checkpoint,
                      const std::function<void()>& written = {});
// Writes what a rank but the first has of the checkpoint in the file `path`. Throws as the function above does.
void write_part(const std::filesystem::path& path, size_t rank, const CheckpointLayout& layout, Checkpoint checkpoint);
// The file of a rank's part of the checkpoint in the file `path`.
std::filesystem::path part_path(const std::filesystem::path& path, const std::string& tag, size_t rank);
// The inverse: rank 0's file to which a part of this name belongs; empty: it is no part's name.
std::filesystem::path whole_path(const std::filesystem::path& part);
// The parts that the checkpoint names, of which the file is read as far as that. Throws as read_checkpoint() does.
CheckpointParts parts_named_in(const std::filesystem::path& path);

// A checkpoint without its tensors.
nlohmann::json to_json(const Checkpoint& checkpoint);
std::string text_of(const Checkpoint& checkpoint);            // the same, as files and ranks have it
Checkpoint checkpoint_from_json(const nlohmann::json& json);  // throws RunError, or what the library throws

}  // namespace arbalest
