// SPDX-License-Identifier: Apache-2.0
#pragma once
// A model as a file states it, before any name is resolved. The text reader and the ONNX reader both make one;
// build_graph() turns it into a graph.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/attributes.h"
#include "graph/file/graph_file.h"
#include "graph/graph.h"
#include "graph/types.h"

namespace arbalest {

class OpRegistry;

struct SourcePlace {
  int line = 0;  // 0: the file has no lines (binary)
  int column = 0;
};

struct SourceName {
  std::string text;
  SourcePlace place;
};

struct SourceTensor {
  TensorType type;
  std::shared_ptr<const std::vector<std::byte>> data;  // logical row-major
};

struct SourceFunction;

// One of value, reference, tensor, graph, unsupported is there; none of them if a function asks its caller for the
// attribute.
struct SourceAttribute {
  SourceName name;
  std::optional<AttributeKind> kind;  // as written after ':'
  std::optional<Attribute> value;
  std::string reference;  // "filters" of `@filters`: the enclosing function's attribute
  std::optional<SourceTensor> tensor;
  std::shared_ptr<const SourceFunction> graph;  // a branch of If, a body of SequenceMap
  std::string unsupported;                      // the error about a type that binary models have and graphs have not
};

// A typed name: graph input or output, an intermediate value's declared type, an initialiser.
struct SourceValue {
  enum class Kept : uint8_t { AsRole, Parameter, Buffer, Constant };
  SourceName name;
  std::optional<TensorType> type;                      // -1 if an extent is symbolic or unknown
  std::vector<std::string> symbols;                    // one an extent: "N" for a symbolic one, else ""
  std::shared_ptr<const std::vector<std::byte>> data;  // initialisers
  Kept kept = Kept::AsRole;                            // what the file says that an initialiser is
};

struct SourceNode {
  SourceName label;  // "" unless given
  std::string domain;
  SourceName op;
  std::vector<SourceAttribute> attributes;
  std::vector<SourceName> inputs, outputs;  // "" if left out
};

using Opsets = std::vector<std::pair<std::string, int64_t>>;

struct SourceFunction {
  std::string domain;
  SourceName name;
  Opsets opsets;
  std::vector<SourceAttribute> attributes;  // with defaults, or without
  std::vector<SourceValue> inputs, outputs, values;
  std::vector<SourceNode> nodes;

  std::string qualified_name() const { return domain.empty() ? name.text : domain + "." + name.text; }
};

// A key of the file's metadata, and the text that it has.
struct SourceMetadata {
  SourceName key;
  std::string value;
};

struct GraphSource {
  std::string file;
  std::vector<std::string> data_files;  // files next to it that hold tensors
  std::string name;
  std::string producer;                  // that wrote the file: "pytorch"; "": it does not say
  std::vector<SourceMetadata> metadata;  // as a text or a binary model has it
  bool equal_is_same = false;            // see note_producer() in graph/file/model_parameters.h
  bool names_weights = false;            // the same
  Opsets opsets;
  SourcePlace opsets_place;
  std::vector<SourceValue> inputs, outputs;
  std::vector<SourceValue> values;  // initialisers (with data) and declared types of intermediate values
  std::vector<SourceNode> nodes;
  std::vector<SourceFunction> functions;
};

// A graph file as load_graph() takes it, or a binary model, as it is stated. Throw GraphError.
GraphSource read_source(const std::string& path);
GraphSource read_onnx_source(const std::string& path);

// Puts the branches of every If, which are graphs of their own, in its place. If a constant of the file says which
// is taken, the other is left out; else both are there, and arbalest.Choose takes the results of one (see
// graph/constants.h). Value `x` of the branch `then_branch` of `y` becomes `y/then_branch/x`. The body of a SequenceMap
// over a listed sequence is put there once for each part. Both readers do it. Throws GraphError if a node is not as
// ONNX defines it.
void take_nested_graphs_apart(GraphSource& source);

// The domain of this library's operators.
inline constexpr const char* kOwnDomain = "arbalest";
// Imports it for a reader that made nodes of it. A source without imports takes any.
void import_own(GraphSource& source);

// ONNX's Constant and ConstantOfShape, which are values here and no operators.
bool is_constant_node(std::string_view qualified_name);

// Resolves operators and names, and inlines functions with their attributes. Inside an instance whose first output is
// `h1` (or which is labelled so), value `c1` becomes `h1/c1`, and the function's outputs take the caller's names.
// Floating initialisers become parameters, others and Constant nodes constants. `batch` > 0 is the extent of the first
// symbol among the inputs'. Calls of models are replaced by what graph/file/model_call.h makes of the models' files.
// `files`: as load_graph() tells them. Throws GraphError: unknown or repeated names, use before definition, functions
// that call themselves or nest too deep.
Graph build_graph(const GraphSource& source, const OpRegistry& registry, int64_t batch, const ModelFiles& models = {},
                  std::vector<std::string>* files = nullptr);

// The number of elements, or nothing if it exceeds what any device holds (2^44).
std::optional<int64_t> checked_element_count(const Shape& shape);

}  // namespace arbalest
