#pragma once
// A pass over a split with weights as they are: what `arbalest evaluate` and `arbalest predict` do.

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "executor/session/metrics.h"
#include "executor/session/observer.h"
#include "executor/session/session.h"

namespace arbalest {

class LoadedModel;
class SampleReader;

// What a batch hands out of the values that were asked for, in their order. Floating ones are float, others are as the
// graph has them; all are row-major.
struct InferredBatch {
  int64_t first = 0, samples = 0;        // of the split, in its order
  std::vector<int64_t> rows;             // the sample of each row: all of these but those that cannot be read
  std::vector<const std::byte*> values;  // valid during the call
};

class Inference {
 public:
  // Opens the split, plans the pass on all devices of `options`, allocates, and reads options.files.weights; without
  // that file weights are what the graph's initialisers say. Of the other options numerics and threads count. Throws
  // GraphError, and RunError where the file does not fit the graph.
  Inference(Graph graph, const SessionOptions& options, const InferenceRequest& asked);
  ~Inference();

  int64_t samples() const;
  const Graph& graph() const;
  const Source& source() const;
  // What classes, or several labels, are called: by the source, or else by the file of weights; empty: they are
  // numbers.
  const std::vector<std::string>& class_names() const;
  bool measures_loss() const;  // whether Validate lists what Train is given
  // Calls them otherwise from now on: one name for each.
  void name_classes(std::vector<std::string> names);
  // Of an asked value: element type and shape of one sample.
  TensorType output_type(size_t index) const;

  // Once. `each` gets every batch, one at a time; with several devices in no certain order. What it throws ends the
  // pass. Returns what the graph's Validate measures, as the last validation of a run with the same weights does.
  // Throws RunError where `interrupted` was set before the end.
  Validated run(const std::function<void(const InferredBatch&)>& each, const std::atomic<bool>& interrupted);

 private:
  void blame_data(const Measurement& measured) const;
  std::function<void(int64_t)> fill(const Replica& replica, TaskId task) const;
  std::function<void(int64_t)> hand_out(const Replica& replica, const std::function<void(const InferredBatch&)>& each);

  const SessionOptions options_;
  const std::unique_ptr<const LoadedModel> model_;
  const std::shared_ptr<const SampleReader> reader_;
  std::vector<std::string> class_names_;
  std::mutex handing_out_;
};

}  // namespace arbalest
