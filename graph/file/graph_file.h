// SPDX-License-Identifier: Apache-2.0
#pragma once
// Graph files: ONNX's textual syntax (.onnxtxt), read with positions and written so that it reads back the same.
//
// The grammar is libonnx 1.12's. It also has lists that mix integers and reals (they become floats), escapes in strings
// (\" \\ \n \t \r \xHH), inf and nan. Further it has quoted names, labels of nodes (`["name"] y = Op (x)`), defaults of
// function attributes, untyped names, and operands left out anywhere.
//
// The writer stays inside libonnx 1.12's grammar unless the graph needs more: names that are no identifiers
// ([A-Za-z_][A-Za-z0-9_]*) are quoted, and nodes not named after their first output get a label. Empty lists carry a
// type, outputs of unknown type none, and strings are escaped.

#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"
#include "graph/op.h"

namespace arbalest {

// The file of a model that a graph calls: `logits = model.resnet (x)`. An .onnx file, or a graph file that calls no
// models itself. The call stands for the model's graph, whose first input x is; its learned initialisers become
// parameters under the names that the file gives them, with their values. The call may have the attributes
//   file           the model's file, relative to the graph's, if no ModelFile is given for the name
//   inputs         the names of the model's inputs that the operands are, if they are not the first ones
//   outputs        values of the model that are the results, of any of its nodes; otherwise its first outputs. What
//                  these do not need of the model, a head that is replaced, is left out.
//   training_mode  1: batch norms and dropouts train as layers do (otherwise files hold them as they run in
//                  validation); 0: they run in training as in validation
struct ModelFile {
  std::string name;  // "resnet"; "": the only model that the graph calls
  std::string path;
};
// The files that a graph's calls of models stand for.
using ModelFiles = std::vector<ModelFile>;

// "resnet=FILE", or "FILE" for the only model. Throws GraphError if no file is named.
ModelFile parse_model_file(std::string_view text);

// The graph that a text states, with functions inlined; not yet verified: sources of data have to be opened first.
// `file` is for error messages. `batch` > 0 is the extent of the inputs' first symbolic dimension ("N" in float[N,3]);
// dimensions that stay unknown are -1, which verify() refuses.
// Throws GraphError with the place, what was found, what was expected and the nearest valid name.
Graph read_graph_text(std::string_view text, const std::string& file, const OpRegistry& registry, int64_t batch = 0,
                      const ModelFiles& models = {});

// Any graph file: by its extension text (.onnxtxt, .txt) or binary (.onnx), otherwise by its content.
// `files` becomes all files that were read: the graph's, those of the models that it calls, and those of their tensors.
Graph load_graph(const std::string& path, const OpRegistry& registry, int64_t batch = 0, const ModelFiles& models = {},
                 std::vector<std::string>* files = nullptr);

// Reads back as the same graph: nodes, names, attributes, roles, initial values to the last bit. Types of intermediate
// values are left to inference. Throws GraphError for what no graph file can state: carries, states, random initial
// values, operators that only passes make.
std::string write_graph_text(const Graph& graph);
// The file is complete or not there at all: written under another name, then renamed. Throws RunError.
void write_graph_file(const Graph& graph, const std::string& path);

// Throws GraphError unless a graph file can state the graph; both writers start with it.
void check_writable(const Graph& graph);
// The whole file. Throws GraphError if it cannot be read.
std::string read_whole_file(const std::string& path);

}  // namespace arbalest
