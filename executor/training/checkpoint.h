// SPDX-License-Identifier: Apache-2.0
#pragma once
// A checkpoint: all that a run is between two iterations, as a file. Weights, slots and averages are tensors under the
// names of the graph's parameters; everything else is JSON in the file's metadata; sums are kept of all of it.

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
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
};

// How a program's arenas lie in memory, so that their tensors have names and shapes of their own.
class CheckpointLayout {
 public:
  explicit CheckpointLayout(const Loop& training);

  // The checkpoint's arrays are given up.
  TensorFile encode(Checkpoint checkpoint) const;

  // Reads a file's tensors into the checkpoint, whose other parts are known. Throws RunError if the file has not
  // just the tensors that the program needs, in their shapes.
  void decode(const TensorFile& file, Checkpoint& checkpoint) const;

  // The first array of weights, statistics, averages or sums that holds something infinite or not a number, by its
  // place in the file; "" if there is none. Slots do not count: a run may go on with a square that is infinite.
  // If updates may be skipped, sums and statistics in the middle of one may be anything: weights and averages count.
  std::string not_finite(Checkpoint& checkpoint) const;

 private:
  struct Part;
  std::vector<Part> parts_of(Checkpoint& checkpoint) const;
  int64_t floats_of(const std::vector<ArenaMember>& members) const;

  std::vector<ArenaMember> weights_, statistics_, frozen_;
  bool skips_ = false;
  int64_t weight_bytes_ = 0, statistic_bytes_ = 0, frozen_bytes_ = 0;
  std::vector<std::string> slots_;
  struct Kept {
    std::string name;
    DataType type;
    int64_t bytes, before;  // as in Part
  };
  std::vector<Kept> kept_;
};

// Puts the parts that are no tensors into the file's metadata, and the sum that read_checkpoint() holds it against.
void seal(TensorFile& file, const std::string& state);

// A file that has been read and holds what was written into it.
struct CheckpointFile {
  std::string path;
  Checkpoint checkpoint;  // without the tensors
  TensorFile tensors;
};

// Throws RunError if the file cannot be read, is no checkpoint, or is not whole.
CheckpointFile read_checkpoint(const std::filesystem::path& path);

// True if all values that training goes on from are finite.
bool is_finite(const CheckpointFile& file);

// Thrown if an array that a checkpoint would hold is not finite.
class NotFiniteError : public RunError {
 public:
  NotFiniteError(const std::filesystem::path& path, std::string array);
  const std::string& array() const { return array_; }  // as CheckpointLayout::not_finite() names it

 private:
  std::string array_;
};

// Replaces the file atomically and returns its number of bytes. Throws RunError if it cannot be written, NotFiniteError
// if no run could go on from it.
int64_t write_checkpoint(const std::filesystem::path& path, const CheckpointLayout& layout, Checkpoint checkpoint);

// The parts of a checkpoint that are no tensors.
nlohmann::json to_json(const Checkpoint& checkpoint);
Checkpoint checkpoint_from_json(const nlohmann::json& json);  // throws RunError, or what the library throws

}  // namespace arbalest
