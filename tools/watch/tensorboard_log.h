// SPDX-License-Identifier: Apache-2.0
#pragma once
// --tensorboard DIR: an event file in a folder, which TensorBoard shows while the run goes on. Steps are iterations.
// Tags are "loss/train", "loss/epoch" and "loss/validation", and metrics in the same way. Other tags are
// "learning_rate", "images_per_second", "epochs", "late_batches", "skipped_updates" if there are any, and "learners".
// Options and attributes of the training are hyperparameters.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "executor/session/observer.h"
#include "tools/watch/event_stream.h"
#include "tools/watch/run_settings.h"

namespace arbalest {

class TensorBoardLog : public RunObserver {
 public:
  // Makes the folder; the file is made when the run has started. Throws RunError if the folder cannot be made or
  // written to; a failure to write is reported once on standard error and ends the file, not the run. Warns if the
  // folder has another run's events: TensorBoard shows both as one.
  // `goes_on`: of a run that goes on from a checkpoint, in a file of its own: what other files there say of later
  // iterations TensorBoard leaves out.
  TensorBoardLog(const std::string& folder, RunSettings settings, bool goes_on = false);
  bool failed() const { return file_ && file_->failed(); }  // to write; after the run

  void started(const RunStarted& event) override;
  void progress(const RunProgress& event) override;
  void epoch(const EpochEnded& event) override;
  void validation(const Validated& event) override;
  void tuned(const Tuned& event) override;
  void rolled_back(const RolledBack& event) override;  // leaves out events of later iterations
  void finished(const RunFinished& event) override;
  void failed(const RunFailed& event) override;

 private:
  using Scalars = std::vector<std::pair<std::string, double>>;
  void write(const std::string& event);                    // framed
  void write_scalars(int64_t iteration, Scalars scalars);  // without those that are undefined

  std::string folder_;
  RunSettings settings_;
  std::optional<EventStream> file_;  // of a run that has started
  std::string loss_ = "loss";        // what begins the tags of the value that is trained
};

}  // namespace arbalest
