// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/files/atomic_file.h"
#include "graph/file/graph_file.h"
#include "graph/file/lexer.h"
#include "graph/op.h"

namespace arbalest {
namespace {

std::string quoted(const std::string& text) {
  return to_string(Attribute(text));
}
std::string name_text(const std::string& name) {
  return is_identifier(name) ? name : quoted(name);
}

// "float[64, 3] " with the blank, "float " for a scalar, "" if the type is not known.
std::string type_text(const TensorType& type) {
  if (type.dtype == DataType::Token) return "";
  if (type.shape.empty()) return fmt::format("{} ", name_of(type.dtype));
  std::string text = fmt::format("{}[", name_of(type.dtype));
  for (size_t i = 0; i < type.shape.size(); ++i) {
    text += (i ? ", " : "") + (type.shape[i] < 0 ? "?" : std::to_string(type.shape[i]));
  }
  return text + "] ";
}

template <typename T>
void append_numbers(std::string& text, const std::byte* data, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, data + size_t(i) * sizeof(T), sizeof(T));
    fmt::format_to(std::back_inserter(text), "{}{}", i ? ", " : "", value);  // the shortest that reads back the same
  }
}

// {1, 2, 3}; a constant fill is spelt out.
std::string data_text(const Value& value) {
  const int64_t count = value.type.elements();
  std::string text = "{";
  if (value.initializer.kind == Initializer::Kind::Constant) {
    const double fill = value.initializer.a;
    for (int64_t i = 0; i < count; ++i) {
      if (i) text += ", ";
      switch (value.type.dtype) {
        case DataType::Float32: text += fmt::format("{}", float(fill)); break;
        case DataType::Float64: text += fmt::format("{}", fill); break;
        case DataType::Bfloat16: text += std::to_string(bfloat16(float(fill)).bits); break;
        default: text += std::to_string(int64_t(fill)); break;
      }
    }
    return text + "}";
  }
  const std::byte* data = value.initializer.data->data();
  switch (value.type.dtype) {
    case DataType::Float32: append_numbers<float>(text, data, count); break;
    case DataType::Float64: append_numbers<double>(text, data, count); break;
    case DataType::Bfloat16: append_numbers<uint16_t>(text, data, count); break;  // their bits, as ONNX has it
    case DataType::Bool:
    case DataType::Uint8: append_numbers<uint8_t>(text, data, count); break;
    case DataType::Int32: append_numbers<int32_t>(text, data, count); break;
    case DataType::Int64: append_numbers<int64_t>(text, data, count); break;
    case DataType::String:
    case DataType::Token: break;
  }
  return text + "}";
}

bool is_initializer(const Value& value) {
  return value.producer == kNone && (value.role == Role::Parameter || value.role == Role::Constant);
}

// A floating constant: an initialiser would read back as a parameter.
bool is_written_as_constant(const Value& value) {
  return is_initializer(value) && value.role == Role::Constant && is_floating(value.type.dtype);
}

std::string typed_name(const Graph& graph, ValueId id) {
  const Value& value = graph.values[id];
  return type_text(value.declared ? *value.declared : value.type) + name_text(value.name);
}

std::string attributes_text(const Node& node) {
  std::string text;
  for (const NamedAttribute& attribute : node.attributes) {
    // An empty list shows no type, so it carries one.
    std::string kind;
    if (to_string(attribute.value) == "[]") kind = fmt::format(": {}", name_of(AttributeKind(attribute.value.index())));
    text += fmt::format("{}{}{} = {}", text.empty() ? "" : ", ", attribute.name, kind, to_string(attribute.value));
  }
  return text.empty() ? "" : fmt::format(" <{}>", text);
}

std::string operands_text(const Graph& graph, const std::vector<ValueId>& operands) {
  std::string text;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (i) text += ", ";
    if (operands[i] != kNone)
      text += name_text(graph.values[operands[i]].name);
    else if (operands.size() == 1)
      text += "\"\"";  // () would be no operand at all
  }
  return text;
}

std::string node_text(const Graph& graph, const Node& node) {
  std::string default_name;
  for (const ValueId output : node.outputs) {
    if (output != kNone && default_name.empty()) default_name = graph.values[output].name;
  }
  const std::string label = node.name == default_name ? "" : fmt::format("[{}] ", name_text(node.name));
  return fmt::format("  {}{} = {}{} ({})\n", label, operands_text(graph, node.outputs), node.op->qualified_name(),
                     attributes_text(node), operands_text(graph, node.inputs));
}

[[noreturn]] void refuse(const std::string& what) {
  throw GraphError(fmt::format("the graph cannot be written to a file: {}; write it before layers are expanded", what));
}

}  // namespace

void check_writable(const Graph& graph) {
  if (!graph.carries.empty()) {
    refuse(fmt::format("value '{}' is carried from one iteration to the next",
                       graph.values[graph.carries[0].current].name));
  }
  for (const Value& value : graph.values) {
    if (value.role == Role::State) refuse(fmt::format("value '{}' is a state", value.name));
    const Initializer& initial = value.initializer;
    const bool random = initial.kind == Initializer::Kind::Normal || initial.kind == Initializer::Kind::Uniform;
    if (is_initializer(value) && random) refuse(fmt::format("the initial value of '{}' is random", value.name));
  }
  for (const Node& node : graph.nodes) {
    if (node.op->internal)
      refuse(fmt::format("node '{}' applies the internal operator {}", node.name, node.op->qualified_name()));
  }
}

std::string write_graph_text(const Graph& graph) {
  check_writable(graph);
  std::string text = "<ir_version: 8, opset_import: [";
  for (size_t i = 0; i < graph.opsets.size(); ++i) {
    text += fmt::format("{}{} : {}", i ? ", " : "", quoted(graph.opsets[i].first), graph.opsets[i].second);
  }
  text += fmt::format("]>\n{} (", name_text(graph.name));
  for (size_t i = 0; i < graph.inputs.size(); ++i) text += (i ? ", " : "") + typed_name(graph, graph.inputs[i]);
  text += ") => (";
  for (size_t i = 0; i < graph.outputs.size(); ++i) text += (i ? ", " : "") + typed_name(graph, graph.outputs[i]);
  text += ")\n";
  std::string initializers, constants;
  for (const Value& value : graph.values) {
    if (!is_initializer(value)) continue;
    if (is_written_as_constant(value)) {
      constants += fmt::format("  {} = Constant <value = {}{}> ()\n", name_text(value.name), type_text(value.type),
                               data_text(value));
    } else {
      initializers += fmt::format("{}  {}{} = {}", initializers.empty() ? "" : ",\n", type_text(value.type),
                                  name_text(value.name), data_text(value));
    }
  }
  if (!initializers.empty()) text += fmt::format("<\n{}\n>\n", initializers);
  text += "{\n" + constants;
  for (const Node& node : graph.nodes) text += node_text(graph, node);
  return text + "}\n";
}

void write_graph_file(const Graph& graph, const std::string& path) {
  const std::string text = write_graph_text(graph);
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace arbalest
