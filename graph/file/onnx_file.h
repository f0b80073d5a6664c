#pragma once
// Binary ONNX models, through libonnx. A build without libonnx refuses them with a clear error.

#include <string>

#include "graph/graph.h"
#include "graph/op.h"

namespace arbalest {

// The graph of a model, its functions inlined; not yet verified. `batch` > 0 is the extent of the inputs' first
// symbolic dimension; dimensions that stay unknown are -1, which verify() refuses. Throws GraphError for a file that is
// no model, for data kept outside the file, and as read_graph_file() does.
Graph read_onnx(const std::string& path, const OpRegistry& registry, int64_t batch = 0);

// Throws GraphError for what check_writable() refuses, and RunError. Attributes of kind float have single precision in
// ONNX.
void write_onnx(const Graph& graph, const std::string& path);

}  // namespace arbalest
