// SPDX-License-Identifier: Apache-2.0
#pragma once
// --mllog FILE: MLPerf's training log, lines of ":::MLLOG {…}" that the package mlperf-logging checks. Source of keys
// and order: https://github.com/mlcommons/logging.
//
// MLPerf's clock begins with the first touch of data (run_start) and goes on while a run is interrupted. The log says
// what the run knows; who submits what is said by entries of the command line.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "executor/session/observer.h"
#include "executor/session/target.h"
#include "tools/watch/event_stream.h"
#include "tools/watch/run_settings.h"

namespace arbalest {

class MlperfLog : public RunObserver {
 public:
  using Entry = std::pair<std::string, nlohmann::ordered_json>;

  // A key and its value, of "submission_org=Lab" or "cache_clear=true". Throws GraphError without a name and "=", and
  // for keys that follow from the run's course.
  static Entry entry_of(const std::string& text);

  // `entries` take the place of values that the log would have otherwise, or are further keys. The file's content is
  // replaced when the run has started. `goes_on`: the run goes on from a checkpoint, and the content up to that
  // checkpoint stays, or all of it if it has come to its end. `target`: the log ends with success once a validation
  // meets it, while the run goes on. Throws RunError if the file cannot be created, OutputInUse if another process
  // writes it. A failure to write is reported once on standard error and ends the log, not the run.
  MlperfLog(const std::string& path, const RunSettings& settings, std::vector<Entry> entries, bool goes_on = false,
            std::optional<Target> target = {});
  bool failed() const { return file_.failed(); }  // to write; after the run

  void started(const RunStarted& event) override;
  void kept(const SamplesKept& event) override;
  void progress(const RunProgress& event) override;
  void epoch(const EpochEnded& event) override;
  void validation(const Validated& event) override;
  void checkpoint(const CheckpointSaved& event) override;
  void rolled_back(const RolledBack& event) override;
  void finished(const RunFinished& event) override;
  void failed(const RunFailed& event) override;

 private:
  using Json = nlohmann::ordered_json;
  enum class Kind : uint8_t { Point, Start, End };
  void write(Kind kind, const char* key, double seconds, const Json& value, const Json& metadata = Json::object());
  void write_head(const RunStarted& event);
  void begin_epoch(int64_t epoch);
  void write_end(double seconds, int64_t images, bool success);

  const std::string path_;
  const std::vector<Entry> hyperparameters_, entries_;
  const bool goes_on_;
  const std::optional<Target> target_;
  EventStream file_;
  double constructed_;   // seconds since 1970
  double began_ = 0;     // the same, of training
  bool writes_ = false;  // false before the run, when the file is an earlier one's, and after the log's end
  int64_t epoch_samples_ = 0;
  std::string metric_;          // that is logged as accuracy; "": the first there is
  bool in_epoch_ = false;       // whether an epoch has begun that has not ended
  int64_t last_iteration_ = 0;  // of the last epoch that ended
  double last_seconds_ = 0;     // at which it did
  bool validated_ = false;      // whether the number of validation's samples is written
};

}  // namespace arbalest
