// SPDX-License-Identifier: Apache-2.0
#pragma once
// Means of the weights of several trained models of one graph ("model soups", Wortsman et al. 2022): made, recalibrated
// and measured as a run validates its own model.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "executor/session/observer.h"
#include "executor/session/run_state.h"
#include "executor/session/session.h"

namespace arbalest {

// Trained models of one graph, and means of them, measured by its validation.
class ModelAverage {
 public:
  // Opens the data, runs the passes for one learner on the first device, and reads the files of weights.
  // options.rules.recalibrate: training batches that the statistics of batch norms are made anew with; 0: as many as
  // the graph's Validate says, or kRecalibrate. Throws GraphError if the graph does not validate or nothing says which
  // way its metric is better, RunError if a file does not fit the graph.
  ModelAverage(Graph graph, SessionOptions options, const std::vector<std::string>& files);

  static constexpr int64_t kRecalibrate = 100;

  // A model with the statistics that it was measured by.
  struct Measured {
    ModelState model;
    Validated result;
    double value = 0;  // of metric()
  };

  const std::string& metric() const { return metric_; }  // by which models are compared
  // Whether a value of the metric is at least as good. An undefined one is worse than any.
  bool as_good(double value, double as) const;
  size_t models() const { return models_.size(); }  // as many as the constructor had files
  // The mean of these models, by their places in the constructor's files.
  Measured mean(const std::vector<size_t>& models) const;
  // Writes a file of weights with what the first model's file says of its run.
  void save(const std::string& path, const Measured& mean, size_t models) const;

 private:
  Measured measured(ModelState model) const;

  SessionOptions options_;
  Prepared prepared_;
  std::string metric_;
  bool higher_ = false;  // which way the metric is better
  struct Model {
    std::vector<std::byte> weights, statistics, frozen;
  };
  std::vector<Model> models_;
  std::map<std::string, std::string> metadata_;
};

// A greedy soup: in the order of their metric, from the best on, each model joins if the mean with it is as good as
// without.
struct GreedySoup {
  std::vector<size_t> models;  // in that order
  ModelAverage::Measured mean;
};
// `single`: of each model by itself. `told` hears of each but the best: whether it joins, and the mean with it.
GreedySoup greedy_soup(const ModelAverage& average, const std::vector<ModelAverage::Measured>& single,
                       const std::function<void(size_t model, bool joins, const ModelAverage::Measured&)>& told);

}  // namespace arbalest
