// SPDX-License-Identifier: Apache-2.0
#pragma once
// --log FILE: one JSON object a line, "event" first; keys in snake_case with their units.

#include <string>
#include <vector>

#include "executor/session/observer.h"
#include "tools/watch/event_stream.h"
#include "tools/watch/run_settings.h"

namespace arbalest {

class JsonLog : public RunObserver {
 public:
  // The settings are written with the start of the run. Throws RunError if the file cannot be created, OutputInUse if
  // another process writes it. Lines are written one by one; a failure is reported once on standard error and ends the
  // log, not the run. The file's content is replaced when the run has started: a run that cannot start leaves an
  // earlier run's log alone. `goes_on`: the run goes on from a checkpoint, and the file's content up to that checkpoint
  // stays.
  explicit JsonLog(const std::string& path, RunSettings settings = {}, bool goes_on = false);
  bool failed() const { return file_.failed(); }  // to write; after the run
  // The keys of lines that hold metrics, whose names are other keys of theirs.
  static const std::vector<std::string>& keys();

  void started(const RunStarted& event) override;
  void progress(const RunProgress& event) override;
  void epoch(const EpochEnded& event) override;
  void validation(const Validated& event) override;
  void skipped(const SampleSkipped& event) override;
  void kept(const SamplesKept& event) override;  // once all are there
  void tuned(const Tuned& event) override;
  void checkpoint(const CheckpointSaved& event) override;
  void rolled_back(const RolledBack& event) override;
  void ranks_changed(const RanksChanged& event) override;
  void finished(const RunFinished& event) override;
  void failed(const RunFailed& event) override;

 private:
  template <typename Json>
  void write(const Json& line);
  void go_on(const RunStarted& event);

  std::string path_;
  RunSettings settings_;
  const bool goes_on_;
  EventStream file_;
  bool waits_;           // nothing is written before the run has started
  std::string waiting_;  // lines until then
  std::string trained_;  // RunStarted::trained
};

}  // namespace arbalest
