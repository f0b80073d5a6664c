// SPDX-License-Identifier: Apache-2.0
#pragma once
// Training of a perceptron by several learners, simulated in double precision straight from the equations: what runs of
// the executor are compared with. Data, their order and the first weights are the project's; everything else is not.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "executor/session/session.h"
#include "graph/graph.h"
#include "io/formats/safetensors.h"
#include "io/sources/data_order.h"
#include "io/sources/source.h"

namespace arbalest::test {

// One training, as its graph and options say it and as the simulation reads it. The rate halves at the milestones.
struct Setting {
  StrategyOptions strategy = {.name = "none"};
  std::vector<StrategyPhase> later;  // strategies that take its place
  int devices = 1, learners = 1;     // learners per device
  std::vector<int> gpus;             // the devices, if they are not CPUs
  std::vector<int> hosts;            // by device, the number of its host; empty: all are of one
  double rate = 0.1, momentum = 0, decay = 0;
  bool nesterov = false;
  bool adamw = false;          // with β₁ = 0.8, β₂ = 0.95, ε = 1e-3
  std::string rule;            // "rmsprop", "lars", "lamb", "muon" or "rows", with numbers of reference.cpp; "": sgd
  bool momentum_only = false;  // of "muon": the last layer's steps are not made orthogonal
  double clip = 0;             // norm of all gradients; 0: any
  bool decay_biases = true;    // as attribute decay_norms
  double logits_factor = 1;    // of the rate of the last layer
  bool freeze_hidden = false;  // the hidden layer stays as it is
  int64_t accumulate = 1;
  double ema = 0;  // decay of the moving average that is saved; 0: none
  std::vector<double> milestones;
  RateScaling scaling = RateScaling::None;
  int64_t hidden = 0;  // units of a hidden layer; 0: none
  int64_t batch = 4, rounds = 7, iterations = 50;
  int64_t test_samples = 0;  // 0: nothing is validated
  int64_t test_batch = 16;

  int64_t all_learners() const { return int64_t(devices) * learners; }
  int64_t samples() const { return rounds * all_learners() * batch + 3; }  // three are left over in each epoch
  std::string source() const;
};

Graph graph_of(const Setting& setting);
SessionOptions options_of(const Setting& setting);
std::string to_string(const Setting& setting);

// Tensors of the graph's parameters, one after the other from the first layer on.
std::vector<double> weights_of(const TensorFile& file);

// The file that a run saves; its weights as executed, and as simulated.
TensorFile trained(Graph graph, SessionOptions options);
std::vector<double> executed(const Setting& setting);
std::vector<double> simulated(const Setting& setting);

using Bits = std::vector<std::vector<uint8_t>>;  // by tensor
Bits bits_of(TensorFile file);

// Runs the setting: each of its validations must be of the model that the simulation has by then, the loss within
// `loss_tolerance` of its own size.
void check_validations(const Setting& setting, double loss_tolerance);

double greatest_difference(const std::vector<double>& a, const std::vector<double>& b);

// Fully connected layers with Relu between them, then softmax. Weights: (units, features) and (units) of each layer.
class Perceptron {
 public:
  Perceptron(int64_t inputs, int64_t hidden, int64_t classes);

  struct Outcome {
    double loss = 0;
    bool correct = false;
  };
  // Adds `share` times the gradient of the loss to `gradient`, unless that is nullptr.
  Outcome run(const std::vector<double>& weights, const std::vector<double>& x, int32_t label, double share,
              std::vector<double>* gradient) const;

  bool is_bias(size_t weight) const;
  std::vector<size_t> parameters() const;                                        // where they begin, and the end
  size_t features(size_t parameter) const;                                       // of a layer's weight; 1: of a bias
  bool is_last(size_t weight) const { return weight >= layers_.back().weight; }  // of the last layer

 private:
  struct Layer {
    size_t features = 0, units = 0;
    size_t weight = 0, bias = 0;  // where they begin
  };
  std::vector<Layer> layers_;
};

class Reference {
 public:
  explicit Reference(const Setting& setting);

  void advance(int64_t iterations);
  std::vector<double> model() const;  // what would be saved now

  struct Metrics {
    double loss = 0, accuracy = 0;
  };
  Metrics validate(const std::vector<double>& weights) const;

 private:
  struct Learner {
    std::vector<double> weights, gradient;
    std::vector<double> velocity, squares;  // AdamW: the first and the second moment
    std::vector<double> means;              // RMSprop: of gradients. "muon" and "rows": the directions of the update
    int64_t updates = 0;                    // since they were zeros
    size_t host = 0;                        // whose average it follows
  };
  struct Average {
    std::vector<double> now, before;
    double learners = 0;
  };

  double epochs_at(int64_t iteration) const;
  double rate_at(int64_t iteration) const;
  int drops_at(int64_t iteration) const;
  void add_gradient(Learner& learner, int64_t epoch, int64_t batch) const;
  void update(int64_t iteration);
  void clip(Learner& learner) const;
  double step(Learner& learner, size_t i) const;
  double change(Learner& learner, size_t i, double rate) const;
  std::vector<double> trust(const Learner& learner) const;
  bool is_matrix(size_t parameter) const;
  void turn(Learner& learner) const;
  void restart(Learner& learner) const;
  std::vector<double> mean(std::vector<double> Learner::*of, int host = -1) const;  // of a host's learners, or of all
  std::vector<double> mean(std::vector<double> Average::*of) const;
  std::vector<double> next_average(size_t host) const;
  std::vector<double> outer_step(std::vector<double>& velocity) const;
  std::vector<double> shared() const;
  bool averages_models() const { return kind_ != "none" && kind_ != "ssgd"; }
  std::vector<double> weighed(int64_t updates) const;
  void take_in(int64_t updates);
  void synchronise(bool ends_epoch);
  void meet();

  void begin(const StrategyOptions& strategy);

  Setting setting_;
  std::string kind_;
  double alpha_ = 0, beta_ = 0, mu_ = 0;
  std::optional<double> carried_alpha_;  // of the strategy before, for the first update
  std::unique_ptr<Source> training_, test_;
  const DataOrder order_;
  const Perceptron perceptron_;
  const int64_t rounds_;                // of an epoch in which every update is whole
  std::vector<double> decay_, factor_;  // of the rate; by weight
  std::vector<bool> frozen_;
  int64_t iteration_ = 0;
  std::vector<Learner> learners_;
  std::vector<Average> averages_;             // z and z_prev: one, or, if hosts average apart, one for each host
  std::vector<double> outer_velocity_;        // of the outer step
  int64_t updates_ = 0;                       // in the group of updates that is under way
  int64_t averagings_ = 0, apart_ = 0;        // since the last averaging of all hosts; updates since then
  int64_t group_begin_ = 0, last_begin_ = 0;  // first iterations of this group and of the one before
  bool averaged_ = false;                     // no update has followed the last averaging
  std::vector<double> weighed_;               // Σ of models, each times its weight in the moving average
  int64_t seen_ = 0;                          // updates that it has seen
};

}  // namespace arbalest::test
