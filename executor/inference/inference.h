// SPDX-License-Identifier: Apache-2.0
#pragma once
// A pass over a split with weights as they are: what `arbalest evaluate` and `arbalest predict` do.

#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <vector>

#include "executor/session/metrics.h"
#include "executor/session/observer.h"
#include "executor/session/session.h"

namespace arbalest {

class LoadedModel;
class SampleReader;

// The requested values for one batch, in the order of the request. Floating-point values are float, others have their
// type in the graph; all are row-major.
struct InferredBatch {
  int64_t first = 0, samples = 0;        // samples of the split, in its order
  std::vector<int64_t> rows;             // the sample of each row; samples that cannot be read have none
  std::vector<const std::byte*> values;  // valid during the call
};

// One pass over a split.
class Inference {
 public:
  // Opens the split, plans the pass on all devices of `options`, allocates, and reads options.files.weights; without
  // that file, the graph's initialisers give the weights. Only the options on numerics and threads matter besides.
  // Throws GraphError, and RunError if the file does not fit the graph.
  Inference(Graph graph, const SessionOptions& options, const InferenceRequest& asked);
  ~Inference();

  int64_t samples() const;       // of the split
  const Graph& graph() const;    // as it was given, verified
  const Source& source() const;  // of the split
  // Names of the classes, or of the labels if there are several: the source's, or else those in the file of weights.
  // Empty if they only have numbers.
  const std::vector<std::string>& class_names() const;
  bool measures_loss() const;                     // whether Validate lists what Train is given
  const std::string& loss() const;                // the name of the value that Train minimises
  const std::vector<std::string>& notes() const;  // about settings that are probably unintended
  // Replaces the names of the classes: one name each.
  void name_classes(std::vector<std::string> names);
  // Element type and shape of one sample of a requested value.
  TensorType output_type(size_t index) const;

  // May be called once. `each` gets every batch, one at a time; with several devices the order is not fixed. An
  // exception of `each` ends the pass. Returns what the graph's Validate measures, as the last validation of a run with
  // the same weights does. Throws InterruptedError if `stop` was requested before the end.
  //
  // If there are several processes, rank 0 gets the batches of all: those of the others once the pass is over. All
  // return the same.
  Validated run(const std::function<void(const InferredBatch&)>& each = {}, std::stop_token stop = {});

 private:
  void blame_data(const Measurement& measured) const;
  std::function<void(int64_t)> fill(const Replica& replica, TaskId task) const;
  std::function<void(int64_t)> hand_out(const Replica& replica, const std::function<void(const InferredBatch&)>& each);
  std::function<void(const InferredBatch&)> keeper(std::string& kept) const;
  void take_others(std::string kept, const std::function<void(const InferredBatch&)>& each) const;

  const SessionOptions options_;
  const std::unique_ptr<const LoadedModel> model_;
  const std::shared_ptr<const SampleReader> reader_;
  std::vector<std::string> class_names_;
  std::mutex handing_out_;
};

}  // namespace arbalest
