// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shows a run while it runs, as `arbalest run` does: on a terminal one line redrawn in place, elsewhere plain lines.

#include <cstdio>
#include <string>

#include "executor/session/observer.h"

namespace arbalest {

// Shows the events of a run to people.
class ConsoleObserver : public RunObserver {
 public:
  // Redraws if `out` is a terminal that can; `out` must outlive this.
  explicit ConsoleObserver(std::FILE* out = stderr);
  ~ConsoleObserver() override { clear(); }

  void started(const RunStarted& event) override;
  void kept(const SamplesKept& event) override;
  void progress(const RunProgress& event) override;
  void epoch(const EpochEnded& event) override;
  void validating(const ValidationProgress& event) override;
  void validation(const Validated& event) override;
  void skipped(const SampleSkipped& event) override;
  void tuned(const Tuned& event) override;
  void checkpoint(const CheckpointSaved& event) override;
  void rolled_back(const RolledBack& event) override;
  void ranks_changed(const RanksChanged& event) override;
  void finished(const RunFinished& event) override;
  void failed(const RunFailed& event) override;

 private:
  void put(const std::string& text);
  void print(const std::string& line);  // a line that stays
  void draw();                          // progress: a line that the next one replaces
  void draw(const std::string& line);
  void clear();
  size_t width() const;  // columns, as of now

  std::FILE* out_;
  const bool terminal_, colours_;
  double rate_factor_ = 1;  // of the validation before
  bool drawn_ = false;
  bool taken_ = true;         // whether the text before was taken as a whole
  int64_t missed_ = 0;        // reports that were left out
  double last_plain_ = -1e9;  // seconds of the last progress shown as a plain line
  RunStarted run_;
  RunProgress last_;
  int64_t ended_ = 0;      // iterations that epochs' lines have covered
  double validated_ = -1;  // of the validation that goes on
  bool recalibrates_ = false;
};

}  // namespace arbalest
