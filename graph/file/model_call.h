#pragma once
// What stands in a graph for a call of a model: the part of the model's file that makes the outputs asked for.

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
  std::vector<ValueId> operands;  // for each operand of the call; kNone where the outputs do not need it
};

// The part of `source` that computes the outputs asked for, with `operands` inputs and `results` outputs of the call.
// What of it is trained graph/file/model_parameters.h says. Batch norms and Dropout, which most files hold as they run
// in inference, train as the layers of this library do; with `call.training` = false they run in training as in
// validation. Numbers in bfloat16 become floats, as those in float16 are. Throws GraphError: names that the model does
// not have, and all operators that are not supported with their nodes.
CalledModel read_model(const GraphSource& source, const OpRegistry& registry, const ModelCall& call, size_t operands,
                       size_t results);

}  // namespace arbalest
