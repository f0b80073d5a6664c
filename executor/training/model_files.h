// SPDX-License-Identifier: Apache-2.0
#pragma once
// The models that a run saves: at its end, and whenever a validation is the best so far.

#include <optional>
#include <string>
#include <vector>

#include "executor/session/event_queue.h"
#include "executor/session/output_paths.h"
#include "executor/session/run_state.h"
#include "executor/session/session.h"

namespace arbalest {

struct ModelAt {
  ModelState model;
  RunPosition at;
};

class ModelFiles {
 public:
  // Keeps the references; `prepared` is made later. Refuses outputs of the run that cannot be written, and those that
  // would destroy each other or what is read. Weights may be saved over those that the run starts from. One of several
  // processes has files: rank 0.
  ModelFiles(const SessionOptions& options, const Prepared& prepared, RunObserver& events);

  // Refuses names that no file of weights can hold, before anything is trained.
  void check_names() const;
  // The model of the latest validation, if it is kept; empty weights: there is none.
  const ModelAt& validated() const { return validated_; }
  void set_validated(ModelAt validated) { validated_ = std::move(validated); }
  // Keeps what has been validated, and saves it if it is the best so far.
  void keep(const Monitor::Verdict& verdict, const ModelAt& validated, const Monitor& monitor);
  // Saves the model at the end of the run, if --save asks for it or an interrupt ended the run. `last`: makes it.
  void save_last(RunFinished& end, const std::function<ModelAt()>& last);
  const std::string& best_error() const { return best_error_; }  // why the latest best model could not be saved

 private:
  void save_somewhere(const std::string& path, const ModelAt& last, RunFinished& end);
  void save(const std::string& path, const ModelAt& saved, double seconds);

  const SessionOptions& options_;
  const std::vector<OutputLock> held_;
  const Prepared& prepared_;
  RunObserver& events_;
  ModelAt validated_;
  std::string best_error_;
};

}  // namespace arbalest
