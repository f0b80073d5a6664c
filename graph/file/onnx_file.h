// SPDX-License-Identifier: Apache-2.0
#pragma once
// Binary ONNX models, through libonnx. A build without libonnx refuses them with a clear error.

#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "graph/op.h"

namespace arbalest {

// The graph of a model, its functions inlined; not yet verified. `batch` > 0 is the extent of the inputs' first
// symbolic dimension; dimensions that stay unknown are -1, which verify() refuses. Tensors may be kept in other files
// of the model's folder. Throws GraphError as load_graph() does, for a file that is no model or has 2 GiB or more,
// and if a file of tensors is missing or too short.
Graph read_onnx(const std::string& path, const OpRegistry& registry, int64_t batch = 0);

struct OnnxFileOptions {
  // Initialisers of 1 KiB or more go to a second file, external_data_path(); they do so anyway if the model would
  // exceed the 2 GiB that ONNX files may have. Floating constants, which are nodes, stay in the model.
  bool external_data = false;
  // Entries of metadata_props, which other programs read: keys and values, UTF-8.
  std::vector<std::pair<std::string, std::string>> metadata = {};
};

// The path of the external data of a model at `path`: "model.onnx.data". The model refers to that file by name, so the
// two files must be kept together.
std::string external_data_path(const std::string& path);

// Each file is complete or not there at all, and the file of tensors is put in place first. The pair is not replaced as
// one: if the process ends in between, an older model at `path` refers to tensors of the new one. Write under a new
// name if that matters. Throws GraphError for graphs that check_writable() refuses, and RunError. Attributes of kind
// float have single precision in ONNX. Returns how many nodes the file has, floating constants among them.
int64_t write_onnx(const Graph& graph, const std::string& path, const OnnxFileOptions& options = {});

}  // namespace arbalest
