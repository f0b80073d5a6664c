// SPDX-License-Identifier: Apache-2.0
#include "passes/loops.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "graph/constants.h"
#include "graph/field.h"
#include "graph/measures.h"
#include "graph/op.h"
#include "graph/samples/exported_batch.h"
#include "ops/names.h"

namespace arbalest {
namespace {

const Node* find_only(const Graph& graph, std::string_view op) {
  const Node* found = graph.find_op(op);
  for (const Node& node : graph.nodes) {
    const bool second = found && &node != found && node.op == found->op;
    if (second) fail(node, fmt::format("the graph has a second {}; expected one", op));
  }
  return found;
}

const Node& require_only(const Graph& graph, std::string_view op) {
  const Node* found = find_only(graph, op);
  if (!found) throw GraphError(fmt::format("graph '{}' has no {} node; training needs one", graph.name, op));
  return *found;
}

template <typename Predicate>
void erase_nodes_if(Graph& graph, Predicate erased) {
  Table<NodeId, bool> gone;
  for (const Node& node : graph.nodes) gone.push_back(erased(node));
  erase_nodes(graph, gone);
}

void read_prefetch(Loop& loop) {
  const Node& prefetch = require_only(loop.graph, op::Prefetch);
  loop.batch = int_attribute(prefetch, "batch");
  loop.depth = int_attribute(prefetch, "depth");
  constexpr int64_t kDeepest = 1024;
  if (loop.depth >= 0 && loop.depth <= kDeepest) return;
  fail(prefetch, fmt::format("attribute 'depth' is {}, expected 0 to {}", loop.depth, kDeepest));
}

// Losses and metrics count the rows of the samples that are valid (StepScalars::valid): one row a sample. Samples of
// several rows, flattened, would be counted in part, without a word.
void check_rows(const Graph& graph) {
  const int64_t batch = int_attribute(require_only(graph, op::Prefetch), "batch");
  for (const Node& node : graph.nodes) {
    if (!node.op->compares) continue;
    const TensorType& type = graph.values[node.input()].type;
    if (!type.shape.empty() && type.shape[0] == batch) continue;
    fail(node, fmt::format("input '{}' is {}; expected one row for each of the {} samples of a batch",
                           node.op->inputs.front().name, to_string(type), batch));
  }
}

// Values that one mean and one deviation are of. None if the node is no norm of its own batch.
std::optional<int64_t> values_normalised(const Graph& graph, const Node& node) {
  const bool of_batch = node.op->keeps_statistics;
  if (!of_batch && !node.op->normalises) return std::nullopt;
  const Shape& x = graph.values[node.input()].type.shape;
  if (node.op->attribute_spec("groups")) {
    return element_count({x.begin() + 1, x.end()}) / int_attribute(node, "groups");
  }
  const int64_t axis = of_batch ? 0 : int_attribute(node, "axis");
  int64_t values = 1;
  for (size_t i = normalized_axis(axis, x.size()); i < x.size(); ++i) {
    values *= of_batch && i == 1 ? 1 : x[i];
  }
  return values;
}

// A value that is normalised by itself is 0. A norm over one value has its bias for a result, whatever it reads, and
// the running variance of a batch norm says nothing of the data.
void check_norms(const Graph& graph) {
  for (const Node& node : graph.nodes) {
    if (values_normalised(graph, node) != 1) continue;
    const bool of_batch = node.op->keeps_statistics;
    fail(node,
         fmt::format("input '{}' is {}: {} is normalised by itself, which makes 0 of every value; expected 2 values "
                     "or more{}",
                     node.op->inputs.front().name, to_string(graph.values[node.input()].type),
                     of_batch ? "the one value of a channel" : "one value",
                     of_batch ? ", as of a batch of 2, or a batch norm that is frozen" : ""));
  }
}

// The graph as it is before anything is lowered: finish() gets the types that the kernel's rows are made of.
LoopMetric metric_from(const Graph& graph, ValueId value, ValueId loss) {
  LoopMetric metric;
  metric.name = graph.values[value].name;
  metric.spec = metric_of(graph, value);
  metric.better = better_of(graph, value, loss);
  if (metric.spec.keeps == MetricSpec::Keeps::Mean) return metric;
  metric.node = graph.nodes[graph.values[value].producer];
  for (const ValueId input : metric.node.inputs) {
    metric.inputs.push_back(input == kNone ? TensorType{DataType::Token, {}} : graph.values[input].type);
  }
  return metric;
}

// Sums the means, and keeps rows if a metric is made of these.
void measure(Loop& loop, const std::vector<ValueId>& values, ValueId loss, const ProgramOptions& options) {
  std::vector<TalliedMean> means;
  std::vector<LoopMean*> places;
  loop.metrics.reserve(values.size());
  for (const ValueId value : values) {
    LoopMetric& metric = loop.metrics.emplace_back(metric_from(loop.graph, value, loss));
    if (metric.spec.keeps == MetricSpec::Keeps::Mean) {
      MeasuredMeans measured = {{{value, weight_of(loop.graph, value)}}, {}, {}, !is_mean(loop.graph, value)};
      if (loop.role == LoopRole::Validate) measured = measured_means(loop.graph, value);
      metric.of_batches = measured.of_batches;
      metric.function = std::move(measured.function);
      metric.arguments = std::move(measured.inputs);
      metric.means.resize(measured.means.size());
      for (LoopMean& mean : metric.means) places.push_back(&mean);
      means.insert(means.end(), measured.means.begin(), measured.means.end());
      continue;
    }
    const int64_t batches = std::max<int64_t>(1, (options.validation_samples + loop.batch - 1) / loop.batch);
    const int64_t of_device = (batches + options.validators - 1) / options.validators;
    metric.rows = add_rows(loop.graph, value, of_device, options.validators);
  }
  size_t weight = means.size();
  for (size_t m = 0; m < means.size(); ++m) {
    *places[m] = {m + 1, means[m].weight == kNone ? 0 : ++weight, counts_samples(loop.graph, means[m].value)};
  }
  loop.sums = 1 + weight;
  loop.arenas.tally = add_tally(loop.graph, means, loop.arenas.factor);
}

// Applies the directions that Validate states for metrics whose operators state nothing.
void state_directions(Loop& loop, const Node& validate) {
  for (const std::string& text : strings_attribute(validate, "directions")) {
    const MetricDirection stated = parse_direction(text);
    for (LoopMetric& metric : loop.metrics) {
      if (metric.name != stated.metric) continue;
      if (metric.better && metric.better != stated.better) {
        fail(validate, fmt::format("attribute 'directions' has '{}', and '{}' is better when {}", text, metric.name,
                                   name_of(*metric.better)));
      }
      metric.better = stated.better;
    }
  }
}

// The largest batch of at most `most` samples that pads_evenly().
int64_t even_batch(int64_t samples, int64_t most) {
  int64_t batch = std::min(samples, most);
  while (!pads_evenly(samples, batch)) --batch;
  return batch;
}

// Takes the loop's slice of the graph. A batch that is larger than the split would be padding for the most part, and
// padding must not change what is measured of whole batches. A graph whose shapes state the number of samples of a
// batch keeps that, and so does one with a model that was exported for a batch.
void slice_for_split(Loop& loop, const Graph& graph, const std::vector<ValueId>& wanted, const Node& validate,
                     const ProgramOptions& options) {
  const int64_t prefetched = int_attribute(require_only(graph, op::Prefetch), "batch");
  const int64_t stated = int_attribute(validate, "batch"), samples = options.validation_samples;
  loop.asked_batch = stated == 0 ? prefetched : stated;
  const std::string split = string_attribute(validate, "split");
  const bool fixed = std::any_of(graph.nodes.begin(), graph.nodes.end(),
                                 [](const Node& node) { return exported_batch(node.where.file) > 0; });
  int64_t batch = loop.asked_batch;
  if (!fixed && options.measures && samples > 0 && batch > 1) {
    batch = loop.padded.empty() ? std::min(batch, samples) : even_batch(samples, batch);
  }
  try {
    loop.graph = slice_validation(graph, wanted, split, batch);
  } catch (const GraphError&) {
    if (batch == loop.asked_batch) throw;
    loop.graph = slice_validation(graph, wanted, split, loop.asked_batch);
  }
}

// The loss is measured as well if all metrics that are asked for keep rows.
Loop validation_loop(const Graph& graph, const Node& validate, const ProgramOptions& options, ProgramNotes& notes) {
  const bool means = std::any_of(notes.listed.begin(), notes.listed.end(), [&](ValueId value) {
    return metric_of(graph, value).keeps == MetricSpec::Keeps::Mean;
  });
  if (options.measures && !means) notes.measured.push_back(notes.loss);
  if (options.measures) notes.measured.insert(notes.measured.end(), notes.listed.begin(), notes.listed.end());
  Loop loop;
  loop.role = LoopRole::Validate;
  for (const std::string& name : options.outputs) loop.outputs.push_back(graph.find_value(name));
  std::vector<ValueId> wanted = notes.measured;
  wanted.insert(wanted.end(), loop.outputs.begin(), loop.outputs.end());
  for (const ValueId value : notes.measured) {
    if (reads_padding(graph, value)) loop.padded.push_back(graph.values[value].name);
  }
  slice_for_split(loop, graph, wanted, validate, options);
  read_prefetch(loop);
  return loop;
}

}  // namespace

Program read_rules(Graph graph, ProgramNotes& notes) {
  require_only(graph, op::Prefetch);
  check_rows(graph);
  Program program;
  program.train = require_only(graph, op::Train);
  program.accumulate = int_attribute(program.train, "accumulate");
  program.ema = float_attribute(program.train, "ema");
  if (const Node* validate = find_only(graph, op::Validate)) {
    notes.validate = *validate;
    program.validate_every = int_attribute(*validate, "every_epochs");
    notes.recalibrate = int_attribute(*validate, "recalibrate");
  }
  program.loops.emplace_back().graph = std::move(graph);
  return program;
}

void cut_validation(Program& program, const ProgramOptions& options, ProgramNotes& notes) {
  Graph& graph = program.training().graph;
  if (options.trains) check_norms(graph);
  // Expansion has renamed the values that layers computed.
  notes.loss = require_only(graph, op::Train).input();
  read_prefetch(program.training());
  if (const Node* validate = find_only(graph, op::Validate)) {
    if (notes.recalibrate > 0 && std::none_of(graph.nodes.begin(), graph.nodes.end(),
                                              [](const Node& node) { return node.op->keeps_statistics; })) {
      fail(*validate, fmt::format("attribute 'recalibrate' is {}, and the graph has no batch norm", notes.recalibrate));
    }
    notes.listed.assign(validate->inputs.begin() + 1, validate->inputs.end());
    Loop validation = validation_loop(graph, *validate, options, notes);
    program.loops.push_back(std::move(validation));
  }
  Graph& training = program.training().graph;
  erase_nodes_if(training, [&](const Node& node) { return is_rule(training, node); });
}

void add_recalibration(Program& program, const ProgramOptions& options, const ProgramNotes& notes) {
  if (notes.recalibrate == 0) return;
  Loop recalibration = program.training();
  recalibration.role = LoopRole::Recalibrate;
  recalibration.batches = (notes.recalibrate + options.validators - 1) / options.validators;
  average_statistics(recalibration.graph, recalibration.arenas, recalibration.batches);
  program.loops.push_back(std::move(recalibration));
}

void add_tallies(Loop& loop, const ProgramOptions& options, const ProgramNotes& notes) {
  if (loop.role == LoopRole::Train) measure(loop, notes.reported, notes.loss, options);
  if (loop.role != LoopRole::Validate) return;
  if (options.measures) measure(loop, notes.measured, notes.loss, options);
  state_directions(loop, *notes.validate);
}

void take_inputs(Loop& loop) {
  const Node prefetch = require_only(loop.graph, op::Prefetch);
  const std::vector<Field> fields = fields_of(prefetch);
  const std::vector<int> chosen = fields_of_outputs(loop.graph, prefetch, fields);
  const auto take = [&](ValueId& field, ValueId input) {
    field = input;
    loop.graph.values[input].role = Role::Input;
    loop.graph.inputs.push_back(input);
  };
  loop.fields.assign(fields.size(), kNone);
  for (size_t output = 0; output < chosen.size(); ++output) {
    const ValueId input = prefetch.outputs[output];
    if (input == kNone || loop.graph.values[input].type.dtype == DataType::String) continue;
    take(loop.fields[size_t(chosen[output])], input);
  }
  for (const Node& node : loop.graph.nodes) {
    if (!node.op->prepare) continue;
    const auto output = std::find(prefetch.outputs.begin(), prefetch.outputs.end(), node.input());
    const int field = chosen[size_t(output - prefetch.outputs.begin())];
    const Value& made = loop.graph.values[node.output()];
    loop.preparations.push_back({node, field, made.name, made.type});
    take(loop.fields.emplace_back(kNone), node.output());
  }
  erase_nodes_if(loop.graph, [&](const Node& node) { return node.op->prepare || node.op == prefetch.op; });
}

// Ids survive by name.
void keep_needed(Loop& loop) {
  std::vector<ValueId*> ids;
  for (ValueId& field : loop.fields) ids.push_back(&field);
  for (LoopMetric& metric : loop.metrics) ids.push_back(&metric.rows);
  for (ValueId& output : loop.outputs) ids.push_back(&output);
  std::vector<std::string> names;
  for (const ValueId* id : ids) names.push_back(*id == kNone ? std::string() : loop.graph.values[*id].name);
  loop.graph.outputs = loop.outputs;
  remove_dead(loop.graph, loop.arenas);
  for (size_t i = 0; i < ids.size(); ++i) *ids[i] = names[i].empty() ? kNone : loop.graph.find_value(names[i]);
}

}  // namespace arbalest
