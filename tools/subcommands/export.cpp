// SPDX-License-Identifier: Apache-2.0

// arbalest export: a trained model as an .onnx file of standard operators.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "executor/inference/classification.h"
#include "executor/inference/export_model.h"
#include "executor/inference/fields_without_data.h"
#include "executor/session/output_paths.h"
#include "executor/weights/weights_file.h"
#include "graph/file/onnx_file.h"
#include "graph/op.h"
#include "tools/answers/class_names.h"
#include "tools/command/commands.h"
#include "tools/command/session_setup.h"
#include "tools/command/subcommand.h"
#include "tools/command/trained_graph.h"

namespace arbalest {
namespace {

// The names of the output's numbers, as an entry of the file's metadata: a JSON array, by the classes' numbers.
void add_class_names(const ExportCommandOptions& options, const Graph& graph, const Graph& model,
                     OnnxFileOptions& written) {
  const std::string& weights = options.session.files.weights;
  const Shape& shape = model.values[model.outputs.at(0)].type.shape;
  const int64_t classes = shape.size() == 2 ? shape[1] : 0;
  std::vector<std::string> names;
  if (!options.class_names.empty()) {
    names = ClassNames(options.class_names, {}, classes).all();
  } else if (!weights.empty()) {
    names = names_for(graph, WeightsFile(weights).class_names(), classes);
  }
  if (int64_t(names.size()) != classes || names.empty()) return;
  written.metadata.emplace_back("class_names",
                                nlohmann::json(names).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

// How the host makes the model's images of files, as an entry of the metadata: nodes with their attributes.
void add_preprocessing(const Graph& graph, const Graph& model, OnnxFileOptions& written) {
  std::string text;
  for (const Node& node : graph.nodes) {
    if (!node.op->prepare) continue;
    const std::string& made = graph.values[node.outputs[0]].name;
    const bool input = std::any_of(model.inputs.begin(), model.inputs.end(),
                                   [&](ValueId id) { return model.values[id].name == made; });
    if (!input) continue;
    text += fmt::format("{}{} = {} <", text.empty() ? "" : "\n", made, node.op->qualified_name());
    for (const NamedAttribute& attribute : node.attributes) {
      text += fmt::format("{}{} = {}", text.ends_with('<') ? "" : ", ", attribute.name, to_string(attribute.value));
    }
    text += "> (file)";
  }
  if (!text.empty()) written.metadata.emplace_back("preprocessing", text);
}

}  // namespace

int command_export(const ExportCommandOptions& options) {
  const FileOptions& files = options.session.files;
  check_distinct_paths({{"GRAPH", options.graph}, {"FILE", options.file}});
  const NamedPaths outputs = {{"FILE", options.file}, {"--external-data", external_data_path(options.file)}};
  check_inputs_kept({{"--weights", files.weights}}, outputs);
  std::vector<std::string> graph_files;
  Graph graph = load_as_trained(options, &graph_files);
  check_graph_kept(graph_files, files, outputs);
  check_model_name("FILE", options.file);
  check_kind_kept("FILE", options.file, OutputKind::Model);
  const auto held = hold_outputs({{"FILE", options.file}});
  ExportOptions exported = options.exported;
  exported.fields = fields_without_data(graph, files);
  const Graph model = export_model(graph, session_options(options), exported);
  OnnxFileOptions written = options.written;
  add_class_names(options, graph, model, written);
  add_preprocessing(graph, model, written);
  const int64_t nodes = write_onnx(model, options.file, written);
  const auto described = [&](const std::vector<ValueId>& values) {
    std::string text;
    for (const ValueId id : values) {
      const Value& value = model.values[id];
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", printable(value.name),
                          to_string(value.declared.value_or(value.type)));
    }
    return text;
  };
  const std::string taken = described(model.inputs), made = described(model.outputs);
  const bool open = (taken + made).find("-1") != std::string::npos;
  fmt::print("{}: {} to {}, {} nodes{}\n", printable(options.file), taken, made, nodes,
             open ? " (-1: any number of samples)" : "");
  tell_of_fresh_weights(files);
  return kDone;
}

void declare_export(Subcommands& commands) {
  const auto command = commands.add<ExportCommandOptions>(
      "export", "write a trained model as .onnx, for other programs to run", command_export);
  CLI::App& app = command.app;
  ExportCommandOptions& options = command.options;
  bind_graph(app, options);
  app.add_option("FILE", options.file, "the model to write (.onnx)")->type_name("");
  bind_weights(app, options.session.files, kModelsWeights);
  ExportOptions& exported = options.exported;
  app.add_option("--value", exported.value,
                 "the output; otherwise the scores that the first SoftmaxCrossEntropy takes, or SigmoidCrossEntropy")
      ->type_name("NAME")
      ->check(not_empty());
  app.add_option("--class-names", options.class_names,
                 "names of the classes, a line each, for the file's metadata; otherwise those that --weights has")
      ->type_name("FILE")
      ->check(not_empty());
  app.add_flag("--probabilities", exported.probabilities,
               "the output's softmax, or sigmoid where SigmoidCrossEntropy takes it");
  app.add_flag("--preprocessing", exported.preprocessing,
               "take images as they are stored (uint8), not as Augment makes them");
  app.add_flag("--fold-batch-norm", exported.fold_batch_norm, "into the convolutions before");
  app.add_flag("--external-data", options.written.external_data,
               "weights in a second file, FILE.data, as they are for models above 2 GiB");
  app.footer(
      "The model has ONNX's own operators of opset 18, or of the least later one that has the forms of all its nodes,\n"
      "and takes any number of samples at once.");
  command.check = [&app, &options] { require(options.file, "FILE", app); };
}

}  // namespace arbalest
