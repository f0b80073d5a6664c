// SPDX-License-Identifier: Apache-2.0

// arbalest predict: a model's predictions for each sample of a split, or for files.

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "base/process.h"
#include "executor/inference/classification.h"
#include "executor/inference/fields_without_data.h"
#include "executor/inference/inference.h"
#include "graph/op.h"
#include "io/formats/csv_field.h"
#include "io/open/open_source.h"
#include "io/photos/file_list.h"
#include "io/sources/sample_index.h"
#include "ops/loss/operands.h"
#include "ops/names.h"
#include "passes/passes.h"
#include "tools/answers/class_names.h"
#include "tools/answers/prediction_lines.h"
#include "tools/command/commands.h"
#include "tools/command/interrupt.h"
#include "tools/command/session_setup.h"
#include "tools/command/subcommand.h"
#include "tools/command/trained_graph.h"
#include "tools/command/world_setup.h"

namespace arbalest {
namespace {

// Lines of samples in the order of the split, in whatever order they come.
class OrderedLines {
 public:
  explicit OrderedLines(std::function<void(const std::string&)> write) : write_(std::move(write)) {}

  void add(int64_t first, std::string lines, int64_t samples) {
    waiting_.emplace(first, std::pair{std::move(lines), samples});
    for (auto next = waiting_.find(next_); next != waiting_.end(); next = waiting_.find(next_)) {
      write_(next->second.first);
      next_ += next->second.second;
      waiting_.erase(next);
    }
  }

 private:
  const std::function<void(const std::string&)> write_;
  std::map<int64_t, std::pair<std::string, int64_t>> waiting_;  // lines, and the number of samples they are for
  int64_t next_ = 0;
};

// The fields of a sample: as the rest of the graph and the file of weights state them, otherwise from the graph's
// source. Opening the source may take long, and its data may be missing.
std::vector<Field> fields_of_graph(const Graph& graph, const PredictOptions& options) {
  const Node* prefetch = graph.find_op(op::Prefetch);
  if (!prefetch) throw GraphError(fmt::format("graph '{}' has no arbalest.Prefetch node", graph.name));
  if (std::vector<Field> fields = fields_without_data(graph, options.session.files); !fields.empty()) return fields;
  const Node* validate = graph.find_op(op::Validate);
  return open_source(string_attribute(*prefetch, "source"), string_attribute(validate ? *validate : *prefetch, "split"),
                     options.session.numerics.seed)
      ->fields();
}

// Inserts a node that scales and crops files to the size in which the graph reads pixels, if it reads fixed-size ones,
// such as CIFAR-10's.
void prepare_files(Graph& graph, std::vector<Field>& fields) {
  const auto prefetch =
      std::find_if(graph.nodes.begin(), graph.nodes.end(), [](const Node& node) { return node.is(op::Prefetch); });
  const std::vector<int> chosen = fields_of_outputs(graph, *prefetch, fields);
  for (size_t i = 0; i < chosen.size(); ++i) {
    if (chosen[i] == kNone) continue;
    Field& field = fields[size_t(chosen[i])];
    const bool pixels = field.dtype == DataType::Uint8 && field.shape.size() == 3;
    if (!pixels || (field.shape[0] != 1 && field.shape[0] != 3)) continue;
    const ValueId files = prefetch->outputs[i];
    const std::string name = graph.values[files].name;
    Table<NodeId, int64_t> order(graph.nodes.size() + 1);
    std::iota(order.begin(), order.end(), int64_t{0});
    order.back() = prefetch - graph.nodes.begin();  // after it
    prefetch->attributes.set("cache", "none");
    const NodeId node =
        graph.add_node(graph.op(op::ResizeCrop), name + ".pixels", {files}, 1,
                       {{"size", std::vector<int64_t>{field.shape[1], field.shape[2]}}, {"channels", field.shape[0]}});
    const ValueId made = graph.nodes[node].outputs[0];
    graph.replace_uses(files, made);
    graph.nodes[node].inputs[0] = files;
    field = {field.name + "_file", DataType::String, {}};
    while (graph.find_value(field.name) != kNone) field.name += '_';
    graph.rename(files, field.name);
    graph.rename(made, name);
    return reorder_nodes(graph, order);
  }
}

// Files have no label: what is computed of one would be of zeros.
void refuse_of_labels(const Graph& graph, const std::vector<Field>& fields, const std::string& value) {
  const Node& prefetch = *graph.find_op(op::Prefetch);
  const std::vector<int> chosen = fields_of_outputs(graph, prefetch, fields);
  std::vector<ValueId> waiting = {graph.find_value(value)};
  std::set<ValueId> seen = {kNone};  // an optional input left out, or no value of the graph
  while (!waiting.empty()) {
    const ValueId at = waiting.back();
    waiting.pop_back();
    if (!seen.insert(at).second) continue;
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (prefetch.outputs[i] != at || fields[size_t(chosen[i])].dtype == DataType::String) continue;
      throw GraphError(
          fmt::format("--value {}: it is made of '{}', which files do not have", value, graph.values[at].name));
    }
    const NodeId producer = graph.values[at].producer;
    if (producer == kNone) continue;
    const std::vector<ValueId>& inputs = graph.nodes[producer].inputs;
    waiting.insert(waiting.end(), inputs.begin(), inputs.end());
  }
}

// Predicts for files. Files that cannot be read are left out, and the others are printed all the same, unless
// --skip-bad states how many may be left out.
void ask_about_files(Graph& graph, const PredictOptions& options, SessionOptions& session, InferenceRequest& asked) {
  std::vector<Field> fields = fields_of_graph(graph, options);
  const auto are_files = [&] {
    return std::any_of(fields.begin(), fields.end(),
                       [](const Field& field) { return field.dtype == DataType::String; });
  };
  if (!are_files()) prepare_files(graph, fields);
  if (!are_files()) {
    throw GraphError(
        fmt::format("the graph reads {}, neither files nor images of one or three channels", to_string(fields)));
  }
  if (!options.value.empty()) refuse_of_labels(graph, fields, options.value);
  constexpr int64_t kMostAtOnce = 64;
  asked.batch = std::min<int64_t>(kMostAtOnce, int64_t(options.files.size()));
  if (session.execution.skip_bad == 0) session.execution.skip_bad = int64_t(options.files.size());
  session.sources.validation = file_list_source(options.files, std::move(fields));
}

// The numbers that a loss compares, and those that they should be; "" if the graph has a loss of classes, or none.
std::pair<std::string, std::string> compared_numbers(const Graph& graph) {
  if (!heads_of(graph).empty()) return {};
  for (const Node& node : graph.nodes) {
    if (!node.op->compares || node.op->compares->target != Comparison::Target::Numbers) continue;
    return {graph.values[node.inputs[LossInput::X]].name, graph.values[node.inputs[LossInput::Target]].name};
  }
  return {};
}

// Numbers of a value, unless --top or --class-names ask for classes: then it has to be what a loss compares.
bool prints_numbers(const PredictOptions& options) {
  return !options.value.empty() && options.top == 0 && options.class_names.empty();
}

Scores choose_values(const Graph& graph, const PredictOptions& options, InferenceRequest& asked) {
  if (prints_numbers(options)) {
    asked.outputs = {options.value};
    return Scores::OfClasses;
  }
  if (const auto [numbers, truth] = compared_numbers(graph); options.table && !numbers.empty()) {
    asked.outputs = {numbers, truth};
    return Scores::OfClasses;
  }
  const Head head = head_of(graph, options.value,
                            options.table ? "predictions are of these" : "--value NAME prints the numbers of a value");
  asked.outputs = {head.scores};
  const std::string others = options.value.empty() && !options.table ? other_heads(graph, head) : "";
  if (!others.empty()) {
    warn(fmt::format("classes are those of '{}'; --value NAME --top N prints those of {}", head.scores, others));
  }
  if (!options.files.empty()) return head.labels ? Scores::OfLabels : Scores::OfClasses;
  asked.outputs.push_back(head.label);
  return head.labels ? Scores::OfLabelsWithTruth : Scores::OfClassesWithLabel;
}

// Throws GraphError for a table that would be of no use.
void check_width(int64_t numbers) {
  constexpr int64_t kMost = 1000;
  if (numbers <= kMost) return;
  throw GraphError(fmt::format("the graph has {} numbers for each sample, expected at most {}", numbers, kMost));
}

std::unique_ptr<PredictionLines> lines_of(const PredictOptions& options, const Inference& inference, Scores scores) {
  const TensorType first = inference.output_type(0);
  if (prints_numbers(options)) return number_lines(options.format, {{options.value, first}});
  if (const auto [numbers, truth] = compared_numbers(inference.graph()); options.table && !numbers.empty()) {
    const TensorType second = inference.output_type(1);
    check_width(first.elements() + second.elements());
    return number_lines(options.format, {{numbers, first}, {truth, second}});
  }
  const bool one_class = scores != Scores::OfClassesWithLabel ||
                         (inference.output_type(1).shape.empty() && inference.output_type(1).dtype == DataType::Int32);
  if (first.shape.size() != 1 || !one_class) {
    const bool labels = scores == Scores::OfLabels || scores == Scores::OfLabelsWithTruth;
    throw GraphError(fmt::format(
        "the graph's {} does not take one {} a sample{}", labels ? op::SigmoidCrossEntropy : op::SoftmaxCrossEntropy,
        labels ? "row of labels" : "class", options.table ? "" : "; name a value with --value"));
  }
  const std::vector<std::string> known = names_for(inference.graph(), inference.class_names(), first.shape[0]);
  ClassFormat format = {options.format, options.top, {}, DataType::Int32};
  format.each_class = options.table && scores == Scores::OfClassesWithLabel;
  if (options.table) check_width(first.shape[0]);
  format.names = ClassNames(options.class_names, known, first.shape[0]).all();
  if (scores != Scores::OfClasses && scores != Scores::OfLabels) format.label = inference.output_type(1).dtype;
  const Source& source = inference.source();
  const std::vector<std::string> of_data = source.class_names();
  if (scores == Scores::OfLabelsWithTruth && options.class_names.empty()) {
    refuse_other_classes(inference.class_names(), of_data, source.describe());
  }
  if (scores == Scores::OfClassesWithLabel && options.class_names.empty() && of_data != inference.class_names()) {
    format.classes = classes_by_name(inference.class_names(), of_data);
  }
  return class_lines(std::move(format), scores);
}

bool has_files(const Source& source) {
  const std::vector<Field> fields = source.fields();
  return std::any_of(fields.begin(), fields.end(), [](const Field& field) { return field.dtype == DataType::String; });
}

void to_standard_output(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
}

int predict_as_rank(const PredictOptions& options, const std::shared_ptr<Ranks>& ranks) {
  const bool tells = !ranks || ranks->first();
  std::optional<WarningsOfFirst> quiet(ranks.get());
  Graph graph = load_as_trained(options);
  SessionOptions session = session_options(options);
  InferenceRequest asked{options.split, {}};
  const Scores scores = choose_values(graph, options, asked);
  if (options.files.empty()) take_as_trained(session, options, graph);
  const int64_t may_be_left_out = session.execution.skip_bad;
  if (!options.files.empty()) ask_about_files(graph, options, session, asked);
  if (ranks) share_session(ranks, options.devices, session);
  Inference inference(std::move(graph), session, asked);
  if (tells) tell_of_fresh_weights(options.session.files);
  const std::unique_ptr<PredictionLines> format = lines_of(options, inference, scores);
  const PredictionTable table = options.table.value_or(PredictionTable{to_standard_output, tells, {}});
  std::string titles, constants;  // of the columns that come first
  for (const auto& [name, value] : table.columns) {
    titles += csv_field(name) + ",";
    constants += csv_field(value) + ",";
  }
  if (table.head) table.write(titles + format->head());
  quiet.reset();
  OrderedLines lines(table.write);
  int64_t left_out = 0;
  const bool files = has_files(inference.source());
  const InterruptHandler interrupt;
  inference.run(
      [&](const InferredBatch& batch) {
        std::string text;
        left_out += batch.samples - int64_t(batch.rows.size());
        for (size_t n = 0; n < batch.rows.size(); ++n) {
          const PredictedSample sample{index_in_split(inference.source(), batch.rows[n]),
                                       files ? inference.source().name(batch.rows[n]) : ""};
          text += constants + format->line(sample, batch, int64_t(n));
        }
        lines.add(batch.first, std::move(text), batch.samples);
      },
      interrupt.token());
  return left_out > may_be_left_out ? kFailed : kDone;
}

}  // namespace

int command_predict(const PredictOptions& options) {
  const std::shared_ptr<Ranks> ranks = join_world(options.world);
  return run_as_rank(ranks.get(), [&] { return predict_as_rank(options, ranks); });
}

int predict_alone(const PredictOptions& options) {
  return predict_as_rank(options, nullptr);
}

void declare_predict(Subcommands& commands) {
  const auto command = commands.add<PredictOptions>(
      "predict", "print what a trained model makes of a split or of files", command_predict);
  CLI::App& app = command.app;
  PredictOptions& options = command.options;
  bind_inference(app, options, options.split, options.class_names);
  bind_world(app, options.world);
  app.add_option("FILES", options.files, "image files to look at, instead of a split")->type_name("");
  app.add_option("--top", options.top,
                 "classes to print a sample, the most probable first; otherwise one, or all labels of several")
      ->type_name("N")
      ->check(whole(1, INT_MAX));
  app.add_option("--value", options.value,
                 "print the numbers of this value of the graph instead of classes, or with --top the classes whose "
                 "scores it is")
      ->type_name("NAME")
      ->check(not_empty());
  const auto set_format = [&options](const std::string& word) {
    using Format = PredictOptions::Format;
    const std::vector<std::string> known = {"lines", "json", "csv"};
    if (std::find(known.begin(), known.end(), word) == known.end()) {
      throw GraphError(
          fmt::format("--format: found '{}', expected lines, json or csv{}", word, did_you_mean(word, known)));
    }
    options.format = word == "csv" ? Format::Csv : word == "json" ? Format::Json : Format::Lines;
  };
  app.add_option_function<std::string>("--format", set_format, "lines, json (an object a line) or csv")
      ->default_str("lines")
      ->type_name("HOW");
  command.check = [&options] {
    if (options.files.empty() || options.split.empty()) return;
    throw GraphError("--split chooses samples of the graph's source, and FILES are looked at instead of it");
  };
}

}  // namespace arbalest
