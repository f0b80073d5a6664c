#include "graph/program.h"

#include <fmt/format.h>

#include <algorithm>

#include "graph/op.h"

namespace arbalest {
namespace {

const Node* find_op(const Graph& graph, std::string_view op, bool required) {
  const Node* found = nullptr;
  for (const Node& node : graph.nodes) {
    if (node.op->qualified_name() != op) continue;
    if (found) fail(node, fmt::format("the graph has a second {}; expected one", op));
    found = &node;
  }
  if (!found && required) {
    throw GraphError(fmt::format("graph '{}' has no {} node; training needs one", graph.name, op));
  }
  return found;
}

void erase_nodes(Graph& graph, std::initializer_list<std::string_view> ops) {
  std::vector<int64_t> key(graph.nodes.size());
  for (size_t n = 0; n < key.size(); ++n) {
    key[n] = int64_t(n);
    for (const std::string_view op : ops) {
      if (graph.nodes[n].op->qualified_name() == op) key[n] = -1;
    }
  }
  reorder_nodes(graph, key);
}

Loop make_loop(Graph graph, const std::vector<ValueId>& metrics) {
  Loop loop;
  const Node& prefetch = *find_op(graph, "arbalest.Prefetch", true);
  loop.batch = int_attribute(prefetch, "batch");
  loop.depth = int_attribute(prefetch, "depth");
  constexpr int64_t kDeepest = 1024;
  if (loop.depth < 1 || loop.depth > kDeepest) {
    fail(prefetch, fmt::format("attribute 'depth' is {}, expected 1 to {}", loop.depth, kDeepest));
  }
  for (const ValueId metric : metrics) loop.metrics.push_back(graph.values[size_t(metric)].name);
  loop.graph = std::move(graph);
  return loop;
}

// Prefetch is the plan's business: its outputs become inputs of the graph.
void take_inputs(Loop& loop) {
  const Node prefetch = *find_op(loop.graph, "arbalest.Prefetch", true);
  loop.image = prefetch.outputs[0];
  loop.label = prefetch.outputs.size() > 1 ? prefetch.outputs[1] : kNone;
  for (const ValueId input : prefetch.outputs) {
    if (input == kNone) continue;
    loop.graph.values[size_t(input)].role = Role::Input;
    loop.graph.inputs.push_back(input);
  }
  erase_nodes(loop.graph, {"arbalest.Prefetch"});
}

// The inputs' ids survive remove_dead by name.
void finish(Loop& loop) {
  const auto name_of_input = [&](ValueId v) { return v == kNone ? std::string() : loop.graph.values[size_t(v)].name; };
  const std::string image = name_of_input(loop.image), label = name_of_input(loop.label);
  loop.graph.outputs.clear();
  remove_dead(loop.graph, loop.arenas);
  loop.image = image.empty() ? kNone : loop.graph.find_value(image);
  loop.label = label.empty() ? kNone : loop.graph.find_value(label);
}

bool normalises(const Graph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                     [](const Node& node) { return node.op->name == "BatchNormTraining"; });
}

std::vector<Loop*> loops_of(Program& program) {
  std::vector<Loop*> loops = {&program.training};
  if (program.validation) loops.push_back(&*program.validation);
  if (program.recalibration) loops.push_back(&*program.recalibration);
  return loops;
}

}  // namespace

const std::vector<std::string>& pass_names() {
  static const std::vector<std::string> names = {"expand_layers", "fuse_batch_norm", "add_update", "lower_precision",
                                                 "remove_dead"};
  return names;
}

Program make_program(Graph graph, const ProgramOptions& options) {
  const auto after = [&](std::string_view pass, const Graph& g) {
    if (options.after) options.after(pass, g);
  };
  Program program;
  find_op(graph, "arbalest.Prefetch", true);
  const Node train = *find_op(graph, "arbalest.Train", true);
  program.train = train;
  program.accumulate = int_attribute(train, "accumulate");
  find_op(graph, "arbalest.Synchronize", false);  // not two

  expand_layers(graph);
  after("expand_layers", graph);
  fuse_batch_norm(graph);
  after("fuse_batch_norm", graph);

  // Read again: expansion renames the values that layers computed.
  const ValueId loss = find_op(graph, "arbalest.Train", true)->inputs[0];
  ValueId validation_tally = kNone;
  int64_t recalibrate = 0;
  if (const Node* validate = find_op(graph, "arbalest.Validate", false)) {
    program.validate_every = int_attribute(*validate, "every_epochs");
    recalibrate = int_attribute(*validate, "recalibrate");
    if (recalibrate > 0 && !normalises(graph)) {
      fail(*validate, fmt::format("attribute 'recalibrate' is {}, and the graph has no batch norm", recalibrate));
    }
    const std::vector<ValueId> metrics(validate->inputs.begin() + 1, validate->inputs.end());
    int64_t batch = int_attribute(*validate, "batch");
    if (batch == 0) batch = int_attribute(*find_op(graph, "arbalest.Prefetch", true), "batch");
    program.validation =
        make_loop(slice_validation(graph, metrics, string_attribute(*validate, "split"), batch), metrics);
    validation_tally = add_tally(program.validation->graph, metrics);
  }

  program.training = make_loop(std::move(graph), {loss});
  Graph& step = program.training.graph;
  erase_nodes(step, {"arbalest.Train", "arbalest.Synchronize", "arbalest.Validate"});
  program.training.arenas =
      add_update(step, loss, train, {.averaging = options.averaging, .accumulate = program.accumulate});
  if (recalibrate > 0) {
    program.recalibration_batches = (recalibrate + options.validators - 1) / options.validators;
    program.recalibration = program.training;
    average_statistics(program.recalibration->graph, program.recalibration->arenas, program.recalibration_batches);
  }
  program.training.arenas.tally = add_tally(step, {loss});
  after("add_update", step);
  if (program.validation) {
    program.validation->arenas = adopt_arenas(program.validation->graph, step, program.training.arenas);
    program.validation->arenas.tally = validation_tally;
  }
  const std::vector<Loop*> loops = loops_of(program);
  for (Loop* loop : loops) {
    take_inputs(*loop);
    if (options.bf16) lower_precision(loop->graph, loop->arenas);
  }
  after("lower_precision", step);
  for (Loop* loop : loops) finish(*loop);
  after("remove_dead", program.training.graph);
  return program;
}

}  // namespace arbalest
