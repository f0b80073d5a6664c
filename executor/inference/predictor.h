// SPDX-License-Identifier: Apache-2.0
#pragma once
// A trained model that answers requests: loaded once, asked as often as one likes, from any number of threads. What
// servers are made of.

#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "executor/session/session.h"
#include "io/sources/memory_source.h"

namespace arbalest {

class LoadedModel;
class RequestQueue;
class Scheduler;

// The value that is asked for, and how requests are gathered.
struct PredictorOptions {
  // Name of a value of the graph that has a row for each sample. "": the scores that the graph's first
  // SoftmaxCrossEntropy compares or, without one, its first SigmoidCrossEntropy.
  std::string value = {};
  int64_t batch = 0;  // samples computed at once, at most; 0: as Validate's
  // All fields of a sample, so that the graph's data need not be there; empty: as the graph's source states them.
  std::vector<Field> fields = {};
};

// A request goes to a device that is free at once. If all are busy it waits, and samples of requests that wait are
// computed together, up to a batch.
class Predictor {
 public:
  // Plans on all devices of `options`, allocates, and reads options.files.weights; without that file weights are what
  // the graph's initialisers say. Throws GraphError, and RunError if the file does not fit the graph.
  Predictor(Graph graph, const SessionOptions& options, const PredictorOptions& asked = {});
  // Ends requests that are under way first. Nobody may be calling predict().
  ~Predictor();

  // The fields that each sample must have: those that the value depends on.
  const std::vector<Field>& fields() const { return fields_; }
  // Type of the value for one sample: row-major floats.
  const TensorType& output() const { return output_; }

  // Names of the classes, or of the labels if there are several: the source's, or else those in the file of weights.
  // Empty if they only have numbers.
  const std::vector<std::string>& class_names() const;

  // The value's rows for the samples, one after the other. `samples` has an array for each of fields(), in any order,
  // with the same number of samples; others are ignored. Any thread may call it; it returns when the rows are there.
  // Throws GraphError if arrays do not fit the fields, RunError if the model cannot be run (any more).
  std::vector<float> predict(std::span<const FieldArray> samples);

 private:
  void serve();
  void fill_open_batches();
  void hand_out(const Replica& replica, int64_t tick);

  const SessionOptions options_;
  std::unique_ptr<const LoadedModel> model_;
  TensorType output_;
  std::vector<Field> fields_;
  std::vector<int64_t> offsets_;  // of each of fields_ in a batch's slot
  std::unique_ptr<RequestQueue> requests_;
  std::unique_ptr<Scheduler> scheduler_;
  std::thread serving_;  // runs the plan
};

}  // namespace arbalest
