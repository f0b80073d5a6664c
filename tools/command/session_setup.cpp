// SPDX-License-Identifier: Apache-2.0
#include "tools/command/session_setup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>

#include "base/process.h"
#include "executor/plan/device_list.h"
#include "graph/file/graph_file.h"
#include "graph/file/overrides.h"
#include "graph/op.h"
#include "ops/builtin_ops.h"
#include "ops/names.h"
#include "ops/optim/train.h"
#include "passes/passes.h"
#include "tools/command/own_variables.h"

namespace arbalest {

namespace {

#ifdef ARBALEST_DEBUG
constexpr bool kDebugBuild = true;
#else
constexpr bool kDebugBuild = false;
#endif

Graph load(const GraphOptions& options, std::vector<std::string>* files = nullptr) {
  Graph graph = load_graph(options.graph, builtin_ops(), 0, options.models, files);
  if (!graph.find_op(op::Prefetch) && !graph.find_op(op::Train)) {
    throw GraphError(Position{options.graph, 0, 0},
                     "a model alone, without data and a rule to train it by; a graph that has them calls it as "
                     "model.NAME, and --model names its file");
  }
  return graph;
}

// A warning for each attribute that --set states and another option takes the place of.
void tell_of_idle_overrides(const Graph& graph, const SessionOptions& session) {
  struct Option {
    std::string_view name, op, attribute;
    bool given;
  };
  const Option options[] = {
      {"--epochs", op::Train, "epochs", session.length.epochs.has_value()},
      {"--batch-total", op::Prefetch, "batch", session.learners.batch_total > 0},
      {"--strategy", op::Synchronize, "strategy", session.learners.strategy.has_value()},
      {"--recalibrate", op::Validate, "recalibrate", session.rules.recalibrate > 0},
  };
  for (const Option& option : options) {
    const Node* node = option.given ? graph.find_op(option.op) : nullptr;
    const NamedAttribute* attribute = node ? node->attributes.find_named(option.attribute) : nullptr;
    if (!attribute || !is_override(*attribute)) continue;
    if (option.attribute == "epochs" && LearningRate(*node).ends()) continue;  // the schedule's length
    warn(fmt::format("{}: changes nothing, because {} counts", attribute->where.file, option.name));
  }
}

}  // namespace

Graph load_with_overrides(const GraphOptions& options, std::vector<std::string>* files) {
  Graph graph = load(options, files);
  for (const std::string& assignment : options.set) {
    const std::string idle = apply_override(graph, assignment);
    if (!idle.empty() && options.tells_of_set) warn(idle);
  }
  tell_of_idle_overrides(graph, options.session);
  return graph;
}

void check_metric_names(const Graph& graph, const std::vector<std::string>& keys, const std::string& option) {
  const Node* validate = graph.find_op(op::Validate);
  for (size_t i = 1; validate && i < validate->inputs.size(); ++i) {
    const std::string& name = graph.values[validate->inputs[i]].name;
    if (std::find(keys.begin(), keys.end(), name) == keys.end()) continue;
    fail(*validate, fmt::format("metric '{}' has the name of another key of what {} writes; expected none of {}", name,
                                option, fmt::join(keys, ", ")));
  }
}

bool judges_falling_rate(const Graph& graph) {
  const Node* train = graph.find_op(op::Train);
  return train && float_attribute(*train, "ema") == 0 && LearningRate(*train).ends();
}

Graph without_validation(Graph graph) {
  Table<NodeId, int64_t> order(graph.nodes.size());
  for (const NodeId n : order.ids()) {
    order[n] = graph.nodes[n].is(op::Validate) ? -1 : int64_t(n);
  }
  reorder_nodes(graph, order);  // drops the negative
  return graph;
}

Graph graph_to_measure(const GraphOptions& options) {
  constexpr double kHarmlessRate = 1e-6;  // noise that is learnt by heart for minutes may make a loss diverge
  Graph graph = load(options);
  for (Node& node : graph.nodes) {
    if (node.is(op::Train)) node.attributes.set("lr", Attribute(kHarmlessRate));
  }
  for (const std::string& assignment : options.set) apply_override(graph, assignment);
  return without_validation(std::move(graph));
}

void check_graph_kept(const std::vector<std::string>& graph_files, const FileOptions& files,
                      const NamedPaths& outputs) {
  NamedPaths read = {{"--weights-map", files.weights_map}};
  for (const std::string& file : graph_files) read.emplace_back("the graph", file);
  check_inputs_kept(read, outputs);
}

void tell_of_fresh_weights(const FileOptions& files) {
  if (files.weights.empty()) {
    warn("no --weights FILE: the weights are those that the graph starts from, not trained ones");
  }
}

void give_learners_queues(int learners, const std::string& devices) {
  constexpr int kUsual = 8, kMost = 32;  // of the driver
  constexpr int kFew = 4;                // whose own lanes and those of averaging have a queue each
  const bool several = parse_devices(devices, [] { return std::vector<PlanDevice>(); }).size() > 1;
  const int asked = learners > 0 ? learners : kUsual;
  const int queues = several && asked > kFew ? 2 * asked : learners;
  if (queues <= kUsual) return;
  set_own_variable("CUDA_DEVICE_MAX_CONNECTIONS", std::to_string(std::min(queues, kMost)));
}

void tell_of_many_threads(int threads) {
  constexpr int kEach = 4;  // threads that wait for disks may be more than there are processors
  const int processors = thread_count(0);
  if (threads <= kEach * processors) return;
  warn(fmt::format("--threads {}: there {} {} processor{} for them; 0 makes as many threads", threads,
                   processors == 1 ? "is" : "are", processors, processors == 1 ? "" : "s"));
}

SessionOptions session_options(const GraphOptions& options, bool alone) {
  SessionOptions session = options.session;
  if (alone) {
    tell_of_many_threads(session.execution.threads);
    give_learners_queues(session.learners.per_device, options.devices);
  }
  session.learners.devices = parse_devices(options.devices, default_devices);
  session.execution.check_passes = kDebugBuild;
  return session;
}

}  // namespace arbalest
