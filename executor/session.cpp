#include "executor/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "executor/device.h"
#include "executor/training.h"
#include "graph/op.h"
#include "io/data_order.h"

namespace arbalest {
namespace {

Node* find_op(Graph& graph, std::string_view op) {
  const auto found = std::find_if(graph.nodes.begin(), graph.nodes.end(),
                                  [&](const Node& node) { return node.op->qualified_name() == op; });
  return found == graph.nodes.end() ? nullptr : &*found;
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

int64_t epochs_of(const SessionOptions& options, const Node& train) {
  if (options.epochs) return *options.epochs;
  const double written = float_attribute(train, "epochs");
  if (written > 1e9) fail(train, fmt::format("attribute 'epochs' is {}, expected at most 1e9", written));
  return written > 0 ? int64_t(std::ceil(written)) : 1;
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
  open_sources(prepared, options.seed);
  verify(prepared.graph);
  check_classes(prepared);
  ProgramOptions passes;
  passes.bf16 = options.precision == Precision::Bf16;
  passes.after = after;
  prepared.program = make_program(prepared.graph, passes);

  PlanRequest& request = prepared.request;
  request.devices = options.devices.empty() ? default_devices() : options.devices;
  request.learners = options.learners;
  request.epochs = epochs_of(options, prepared.program.train);
  request.iterations = options.iterations.value_or(0);
  request.report_every = options.report_every;
  request.training_samples = prepared.training->size();
  request.training_resident = prepared.training->resident();
  if (prepared.validation) {
    request.validation_samples = prepared.validation->size();
    request.validation_resident = prepared.validation->resident();
  }
  const int64_t learners = int64_t(request.devices.size()) * request.learners;
  prepared.rounds = rounds_per_epoch(request.training_samples, learners, prepared.program.training.batch);
  return prepared;
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
