#pragma once
// --log FILE: one JSON object a line, "event" first; keys in snake_case with their units.

#include <cstdio>
#include <memory>
#include <string>

#include "executor/session/observer.h"

namespace arbalest {

class JsonLog : public RunObserver {
 public:
  // Throws RunError where the file cannot be created. Lines are flushed one by one; a failure to write is reported once
  // on standard error and ends the log, not the run.
  explicit JsonLog(const std::string& path);
  bool failed() const { return !file_; }  // to write; after the run

  void started(const RunStarted& event) override;
  void progress(const RunProgress& event) override;
  void epoch(const EpochEnded& event) override;
  void validation(const Validated& event) override;
  void skipped(const SampleSkipped& event) override;
  void tuned(const Tuned& event) override;
  void checkpoint(const CheckpointSaved& event) override;
  void finished(const RunFinished& event) override;
  void failed(const RunFailed& event) override;

 private:
  template <typename Json>
  void write(const Json& line);

  std::string path_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

}  // namespace arbalest
