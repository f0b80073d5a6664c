// SPDX-License-Identifier: Apache-2.0
#include "executor/inference/average_models.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "executor/segment/segment.h"
#include "executor/weights/class_names.h"
#include "graph/op.h"
#include "ops/names.h"

namespace arbalest {
namespace {

// Makes of the training rule one that changes no weight: a batch only runs so that a validation follows it.
Graph standing_still(Graph graph) {
  Node* train = graph.find_op(op::Train);
  if (!train) return graph;  // prepare() refuses it
  Attributes still{{"optimizer", std::string("sgd")}, {"lr", 0.0}};
  if (const Attribute* frozen = train->attributes.find("frozen")) still.set("frozen", *frozen);
  train->attributes = std::move(still);
  if (Node* validate = graph.find_op(op::Validate)) validate->attributes.set("every_epochs", int64_t{1});
  return graph;
}

// Options for one pass on the first device.
SessionOptions for_one_pass(SessionOptions options) {
  LearnerOptions& learners = options.learners;
  if (learners.devices.size() > 1) learners.devices.resize(1);
  learners.per_device = 1;
  options.length = {.epochs = 1};
  options.files = {};
  return options;
}

class Keeper final : public RunObserver {
 public:
  void validation(const Validated& event) override { validated = event; }
  Validated validated;
};

}  // namespace

ModelAverage::ModelAverage(Graph graph, SessionOptions options, const std::vector<std::string>& files)
    : options_(for_one_pass(std::move(options))), prepared_(prepare(standing_still(std::move(graph)), options_)) {
  if (!prepared_.validation) throw GraphError("means of models are measured; expected a graph that validates");
  if (prepared_.program.training().arenas.statistics != kNone && !prepared_.program.find(LoopRole::Recalibrate)) {
    prepared_.graph.find_op(op::Validate)->attributes.set("recalibrate", kRecalibrate);
    set_learners(prepared_, 1, options_);
  }
  PlanRequest& request = prepared_.request;
  request.rounds = request.epochs = 1;  // a batch, then the validation
  request.keep_validated = true;
  Keeper keeper;
  const Monitor monitor(prepared_.program, options_.rules, keeper);
  monitor.require_better("average");
  metric_ = monitor.best_metric();
  higher_ = monitor.better() == MetricSpec::Better::Higher;
  const Loop& training = prepared_.program.training();
  const ArenaValues& arenas = training.arenas;
  for (const std::string& path : files) {
    const WeightsFile file(path);
    check_weights(file, training.graph, {arenas.weights, arenas.statistics, arenas.frozen});
    InitialValues values = initial_values(prepared_, options_, &file);
    const auto take = [&](ValueId arena) {
      return arena == kNone ? std::vector<std::byte>() : std::move(values.at(arena));
    };
    models_.push_back({take(arenas.weights), take(arenas.statistics), take(arenas.frozen)});
    if (models_.size() == 1) metadata_ = file.metadata();
  }
}

bool ModelAverage::as_good(double value, double as) const {
  if (std::isnan(value) || std::isnan(as)) return std::isnan(as);
  return higher_ ? value >= as : value <= as;
}

ModelAverage::Measured ModelAverage::mean(const std::vector<size_t>& models) const {
  const double share = 1.0 / double(models.size());
  const auto mean_of = [&](std::vector<std::byte> Model::*array) {
    if (models.size() == 1) return models_[models.front()].*array;
    WeightedSum sum;
    for (const size_t model : models) sum.add(share, models_[model].*array);
    return sum.bytes();
  };
  // Recalibration makes the statistics anew.
  return measured({mean_of(&Model::weights), models_[models.front()].statistics, mean_of(&Model::frozen)});
}

ModelAverage::Measured ModelAverage::measured(ModelState model) const {
  Measured found;
  Keeper keeper;
  Monitor monitor(prepared_.program, options_.rules, keeper, prepared_.training->class_names());
  SegmentOptions options;
  options.on_validated = [&](const Monitor::Verdict&, const ModelState& validated, const RunPosition&) {
    found.model = validated;
  };
  Segment segment(prepared_, options_, {}, monitor, options);
  const ArenaValues& arenas = prepared_.program.training().arenas;
  InitialValues values = initial_values(prepared_, options_);
  const auto put = [&](ValueId arena, const std::vector<std::byte>& content) {
    if (arena != kNone) values[arena] = content;
  };
  put(arenas.weights, model.weights);
  if (arenas.weights_lowered != kNone) values[arenas.weights_lowered] = lowered_content(model.weights);
  put(arenas.statistics, model.statistics);
  put(arenas.frozen, model.frozen);
  segment.start_from(std::move(values));
  segment.run({}, nullptr);
  found.result = keeper.validated;
  const MonitorState state = monitor.state();
  found.value = state.has_best ? state.best_value : std::numeric_limits<double>::quiet_NaN();
  return found;
}

void ModelAverage::save(const std::string& path, const Measured& mean, size_t models) const {
  TensorFile file;
  file.metadata = metadata_;
  for (const char* of_one : {"iteration", "epoch"}) file.metadata.erase(of_one);
  put_number(file.metadata, "averaged", models);
  append_model(file, prepared_.program.training(), mean.model);
  write_safetensors(path, file);
}

GreedySoup greedy_soup(const ModelAverage& average, const std::vector<ModelAverage::Measured>& single,
                       const std::function<void(size_t model, bool joins, const ModelAverage::Measured&)>& told) {
  std::vector<size_t> order(single.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return !average.as_good(single[b].value, single[a].value); });
  GreedySoup soup{{order.front()}, single[order.front()]};
  for (size_t i = 1; i < order.size(); ++i) {
    std::vector<size_t> with = soup.models;
    with.push_back(order[i]);
    ModelAverage::Measured mean = average.mean(with);
    const bool joins = average.as_good(mean.value, soup.mean.value);
    told(order[i], joins, mean);
    if (joins) soup = {std::move(with), std::move(mean)};
  }
  return soup;
}

}  // namespace arbalest
