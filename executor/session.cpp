#include "executor/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "executor/device.h"
#include "executor/training.h"
#include "graph/op.h"
#include "io/data_order.h"

namespace arbalest {
namespace {

const Node* find_op(const Graph& graph, std::string_view op) {
  const auto found = std::find_if(graph.nodes.begin(), graph.nodes.end(),
                                  [&](const Node& node) { return node.op->qualified_name() == op; });
  return found == graph.nodes.end() ? nullptr : &*found;
}

Node* find_op(Graph& graph, std::string_view op) {
  return const_cast<Node*>(find_op(std::as_const(graph), op));
}

// Opens what Prefetch and Validate name, and tells Prefetch the shape of a sample.
void open_sources(Prepared& prepared, uint64_t seed) {
  Node* prefetch = find_op(prepared.graph, "arbalest.Prefetch");
  if (!prefetch) return;  // make_program says so
  const std::string spec = string_attribute(*prefetch, "source");
  try {
    prepared.training = open_source(spec, string_attribute(*prefetch, "split"), seed);
    if (Node* validate = find_op(prepared.graph, "arbalest.Validate")) {
      prepared.validation = open_source(spec, string_attribute(*validate, "split"), seed);
    }
  } catch (const GraphError& error) {
    fail(*prefetch, error.what());
  } catch (const RunError& error) {
    throw RunError(fmt::format("node '{}' (arbalest.Prefetch): {}", prefetch->name, error.what()));
  }
  const SampleShape shape = prepared.training->sample_shape();
  if (prepared.validation && prepared.validation->sample_shape() != shape) {
    fail(*prefetch, fmt::format("the training split holds samples of {}, the validation split of {}", to_string(shape),
                                to_string(prepared.validation->sample_shape())));
  }
  prefetch->attributes.set("sample_shape", std::vector<int64_t>{shape.channels, shape.height, shape.width});
}

// A label beyond the logits would make the loss NaN.
void check_classes(const Prepared& prepared) {
  for (const Node& node : prepared.graph.nodes) {
    if (node.op->qualified_name() != "arbalest.SoftmaxCrossEntropy" || !prepared.training) continue;
    const int64_t logits = prepared.graph.values[size_t(node.inputs[0])].type.shape.back();
    if (logits < prepared.training->classes()) {
      fail(node, fmt::format("{} logits for {} classes of '{}'", logits, prepared.training->classes(),
                             prepared.training->describe()));
    }
  }
}

const Node* require_op(const Graph& graph, std::string_view op) {
  const Node* found = find_op(graph, op);
  if (!found) throw GraphError(fmt::format("graph '{}' has no {} node; training needs one", graph.name, op));
  return found;
}

std::vector<PlanDevice> devices_of(const SessionOptions& options) {
  return options.devices.empty() ? default_devices() : options.devices;
}

// Each learner's share of --batch-total.
void divide_batch(Graph& graph, const SessionOptions& options) {
  if (options.learners == 0) throw GraphError("--batch-total needs a number of learners, and --learners is auto");
  const int64_t learners = int64_t(devices_of(options).size()) * options.learners;
  if (options.batch_total % learners != 0) {
    throw GraphError(
        fmt::format("--batch-total {}: expected a multiple of the {} learners", options.batch_total, learners));
  }
  if (Node* prefetch = find_op(graph, "arbalest.Prefetch")) {
    prefetch->attributes.set("batch", options.batch_total / learners);
  }
}

int64_t epochs_of(const SessionOptions& options, const Node& train) {
  if (options.epochs) return *options.epochs;
  const double written = float_attribute(train, "epochs");
  if (written > 1e9) fail(train, fmt::format("attribute 'epochs' is {}, expected at most 1e9", written));
  if (written != std::floor(written))
    fail(train, fmt::format("attribute 'epochs' is {}, expected a whole number", written));
  return written > 0 ? int64_t(written) : 1;
}

void describe_sources(Prepared& prepared) {
  PlanRequest& request = prepared.request;
  request.training_samples = prepared.training->size();
  request.training_resident = prepared.training->resident();
  if (!prepared.validation) return;
  request.validation_samples = prepared.validation->size();
  request.validation_resident = prepared.validation->resident();
}

}  // namespace

Precision parse_precision(std::string_view text) {
  for (const Precision precision : {Precision::Fp32, Precision::Tf32, Precision::Bf16}) {
    if (text == name_of(precision)) return precision;
  }
  const std::vector<std::string> names = {"fp32", "tf32", "bf16"};
  throw GraphError(
      fmt::format("unknown precision '{}'; expected fp32, tf32 or bf16{}", text, did_you_mean(text, names)));
}

RateScaling parse_rate_scaling(std::string_view text) {
  const std::vector<std::string> names = {"none", "linear", "sqrt"};
  for (size_t i = 0; i < names.size(); ++i) {
    if (text == names[i]) return RateScaling(i);
  }
  throw GraphError(fmt::format("unknown scaling '{}' of the learning rate; expected none, linear or sqrt{}", text,
                               did_you_mean(text, names)));
}

std::string_view name_of(Precision precision) {
  switch (precision) {
    case Precision::Fp32: return "fp32";
    case Precision::Tf32: return "tf32";
    case Precision::Bf16: return "bf16";
  }
  return "?";
}

std::vector<PlanDevice> default_devices() {
  return {{cuda_device_count() > 0 ? PlanDevice::Kind::Cuda : PlanDevice::Kind::Cpu, 0}};
}

Prepared prepare(Graph graph, const SessionOptions& options,
                 const std::function<void(std::string_view, const Graph&)>& after) {
  Prepared prepared;
  prepared.graph = std::move(graph);
  if (options.batch_total > 0) divide_batch(prepared.graph, options);
  if (options.recalibrate > 0) {
    Node* validate = find_op(prepared.graph, "arbalest.Validate");
    if (!validate) throw GraphError("--recalibrate needs a graph that validates");
    validate->attributes.set("recalibrate", options.recalibrate);
  }
  open_sources(prepared, options.seed);
  verify(prepared.graph);
  check_classes(prepared);
  set_learners(prepared, std::max(1, options.learners), options, after);
  return prepared;
}

Strategy strategy_for(const Graph& graph, const SessionOptions& options, int32_t learners) {
  const Node* synchronize = find_op(graph, "arbalest.Synchronize");
  Strategy strategy = synchronize ? strategy_of(*synchronize) : Strategy{};
  if (options.strategy) strategy.kind = *options.strategy;
  if (strategy.kind == Strategy::Kind::Ssgd) strategy.every = 1;
  return resolved(strategy, int64_t(devices_of(options).size()) * learners, *require_op(graph, "arbalest.Train"));
}

void set_learners(Prepared& prepared, int32_t learners, const SessionOptions& options,
                  const std::function<void(std::string_view, const Graph&)>& after) {
  PlanRequest& request = prepared.request;
  request = {};
  request.devices = devices_of(options);
  request.learners = learners;
  const int64_t all = int64_t(request.devices.size()) * learners;
  request.strategy = strategy_for(prepared.graph, options, learners);

  ProgramOptions passes;
  passes.bf16 = options.precision == Precision::Bf16;
  passes.averaging = request.strategy.kind == Strategy::Kind::Sma;
  if (options.rate_scaling != RateScaling::None && request.strategy.kind == Strategy::Kind::None && all > 1) {
    throw GraphError("--scale-lr follows the learners that train one model; with strategy none each trains its own");
  }
  passes.validators = validator_count(request);
  passes.after = after;
  prepared.program = make_program(prepared.graph, passes);

  request.epochs = epochs_of(options, prepared.program.train);
  request.iterations = options.iterations.value_or(0);
  request.report_every = options.report_every;
  describe_sources(prepared);
  request.rounds =
      rounds_of(request.training_samples, all, prepared.program.training.batch, prepared.program.accumulate);
  const bool saves_validated =
      !options.rules.targets.empty() || options.rules.patience > 0 || prepared.program.recalibration;
  request.keep_validated = !options.save_best.empty() || (!options.save.empty() && saves_validated);
  request.rate_follows_validation = options.rules.plateau > 0;
  prepared.total_epochs =
      request.iterations > 0 ? double(request.iterations) / double(request.rounds) : double(request.epochs);
}

RunFinished train(Graph graph, const SessionOptions& options, RunObserver& observer,
                  const std::atomic<bool>& interrupted) {
  const auto began = std::chrono::steady_clock::now();
  std::unique_ptr<Training> training;
  try {
    training = std::make_unique<Training>(std::move(graph), options, observer);
    return training->run(interrupted, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  } catch (const std::exception& error) {
    const auto* task = dynamic_cast<const TaskError*>(&error);
    observer.failed({error.what(), -1, task ? task->iteration : -1, training ? training->seconds() : 0});
    throw;
  }
}

}  // namespace arbalest
