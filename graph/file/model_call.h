// SPDX-License-Identifier: Apache-2.0
#pragma once
// The part of a model's file that computes the outputs of a model call, as a graph to put in the call's place.

#include <map>
#include <string>
#include <vector>

#include "graph/file/graph_file.h"
#include "graph/file/graph_source.h"

namespace arbalest {

// The domain of such calls: `y = model.resnet (x)`.
inline constexpr const char* kModelDomain = "model";

struct ModelCall {
  std::string name;                  // "resnet"
  std::vector<std::string> inputs;   // the model's names of the operands; empty: in the file's order
  std::vector<std::string> outputs;  // values of the model; empty: its outputs in the file's order
  bool training = true;              // see read_model()
};

struct CalledModel {
  Graph graph;                    // as build_graph() makes it: `outputs` are those asked for, in their order
  std::vector<ValueId> operands;  // for each operand of the call; kNone if the outputs do not need it
};

// The part of `source` that computes the outputs asked for, with `operands` inputs and `results` outputs of the call.
// graph/file/model_parameters.h describes which of its values are trained. Batch norms and Dropout, which most files
// hold in their inference form, train as the layers of this library do. With `call.training` = false they run in
// training as in validation. Numbers in bfloat16 become floats, as those in float16 do. Throws GraphError for names
// that the model does not have, and for unsupported operators, all of them with their nodes.
CalledModel read_model(const GraphSource& source, const OpRegistry& registry, const ModelCall& call, size_t operands,
                       size_t results);

}  // namespace arbalest
