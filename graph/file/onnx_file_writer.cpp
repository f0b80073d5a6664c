// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "graph/file/graph_file.h"
#include "graph/file/onnx_file.h"

namespace arbalest {

std::string external_data_path(const std::string& path) {
  return path + ".data";
}

}  // namespace arbalest

#ifndef ARBALEST_ONNX

namespace arbalest {

int64_t write_onnx(const Graph&, const std::string& path, const OnnxFileOptions&) {
  throw GraphError(Position{path, 0, 0}, "binary ONNX needs a build with libonnx; this one writes graph files as text");
}

}  // namespace arbalest

#else

#include <onnx/onnx_pb.h>

#include <filesystem>
#include <limits>
#include <optional>

#include "base/files/atomic_file.h"
#include "graph/op.h"

namespace arbalest {
namespace {

using Attr = onnx::AttributeProto;

// The file next to a model for its larger tensors.
class ExternalWriter {
 public:
  explicit ExternalWriter(const std::filesystem::path& path) : name_(path.filename().string()), file_(path) {}

  // Moves the tensor's bytes there.
  void take(onnx::TensorProto& proto) {
    const std::string bytes = std::move(*proto.mutable_raw_data());
    if (bytes.size() < kLeast) {
      proto.set_raw_data(bytes);
      return;
    }
    file_.write(std::string((kAlignment - offset_ % kAlignment) % kAlignment, '\0'));
    offset_ = (offset_ + kAlignment - 1) / kAlignment * kAlignment;
    proto.clear_raw_data();
    proto.set_data_location(onnx::TensorProto::EXTERNAL);
    state(proto, "location", name_);
    state(proto, "offset", std::to_string(offset_));
    state(proto, "length", std::to_string(bytes.size()));
    file_.write(bytes);
    offset_ += bytes.size();
  }

  void commit() { file_.commit(); }

 private:
  static constexpr size_t kLeast = 1024;      // bytes; smaller tensors stay in the model, as others keep them too
  static constexpr uint64_t kAlignment = 64;  // for programs that map the file

  static void state(onnx::TensorProto& proto, const char* key, const std::string& value) {
    auto& entry = *proto.add_external_data();
    entry.set_key(key);
    entry.set_value(value);
  }

  std::string name_;
  AtomicFile file_;
  uint64_t offset_ = 0;
};

void fill(onnx::TensorProto& proto, const Value& value) {
  proto.set_name(value.name);
  proto.set_data_type(int32_t(onnx_number(value.type.dtype)));
  for (const int64_t extent : value.type.shape) proto.add_dims(extent);
  std::string& raw = *proto.mutable_raw_data();
  if (value.initializer.kind == Initializer::Kind::Data) {
    raw.assign(reinterpret_cast<const char*>(value.initializer.data->data()), value.initializer.data->size());
    return;
  }
  const double constant = value.initializer.a;
  const auto repeat = [&](auto number) {
    for (int64_t i = 0; i < value.type.elements(); ++i)
      raw.append(reinterpret_cast<const char*>(&number), sizeof number);
  };
  switch (value.type.dtype) {
    case DataType::Float32: repeat(float(constant)); break;
    case DataType::Float64: repeat(constant); break;
    case DataType::Bfloat16: repeat(bfloat16(float(constant)).bits); break;
    case DataType::Bool:
    case DataType::Uint8: repeat(uint8_t(constant)); break;
    case DataType::Int32: repeat(int32_t(constant)); break;
    case DataType::Int64: repeat(int64_t(constant)); break;
    case DataType::String:
    case DataType::Token: break;
  }
}

void fill(onnx::ValueInfoProto& info, const Value& value) {
  info.set_name(value.name);
  const TensorType& type = value.declared ? *value.declared : value.type;
  if (type.dtype == DataType::Token) return;
  auto& tensor = *info.mutable_type()->mutable_tensor_type();
  tensor.set_elem_type(int32_t(onnx_number(type.dtype)));
  auto& shape = *tensor.mutable_shape();
  for (size_t axis = 0; axis < type.shape.size(); ++axis) {
    auto& dim = *shape.add_dim();
    if (type.shape[axis] >= 0) dim.set_dim_value(type.shape[axis]);
    if (type.shape[axis] < 0 && axis == 0) dim.set_dim_param("batch");
  }
}

void fill(Attr& proto, const NamedAttribute& attribute) {
  proto.set_name(attribute.name);
  switch (AttributeKind(attribute.value.index())) {
    case AttributeKind::Int:
      proto.set_type(Attr::INT);
      proto.set_i(std::get<int64_t>(attribute.value));
      break;
    case AttributeKind::Float:
      proto.set_type(Attr::FLOAT);
      proto.set_f(float(std::get<double>(attribute.value)));
      break;
    case AttributeKind::String:
      proto.set_type(Attr::STRING);
      proto.set_s(std::get<std::string>(attribute.value));
      break;
    case AttributeKind::Ints:
      proto.set_type(Attr::INTS);
      for (const int64_t number : std::get<std::vector<int64_t> >(attribute.value)) proto.add_ints(number);
      break;
    case AttributeKind::Floats:
      proto.set_type(Attr::FLOATS);
      for (const double number : std::get<std::vector<double> >(attribute.value)) proto.add_floats(float(number));
      break;
    case AttributeKind::Strings:
      proto.set_type(Attr::STRINGS);
      for (const std::string& text : std::get<std::vector<std::string> >(attribute.value)) proto.add_strings(text);
      break;
  }
}

onnx::TensorProto& add_constant(onnx::GraphProto& graph, const Value& value) {
  onnx::NodeProto& node = *graph.add_node();
  node.set_op_type("Constant");
  node.add_output(value.name);
  Attr& content = *node.add_attribute();
  content.set_name("value");
  content.set_type(Attr::TENSOR);
  return *content.mutable_t();
}

// Whether the model's tensors go to a file of their own.
bool needs_external_data(const Graph& graph, bool asked) {
  constexpr int64_t kMost = (int64_t{1} << 31) - (int64_t{1} << 26);  // protobuf's limit, less room for the graph
  int64_t bytes = 0;
  for (const Value& value : graph.values) {
    if (value.producer == kNone && value.role != Role::Input) bytes += value.type.bytes();
  }
  return asked || bytes > kMost;
}

}  // namespace

int64_t write_onnx(const Graph& graph, const std::string& path, const OnnxFileOptions& options) {
  check_writable(graph);
  onnx::ModelProto model;
  model.set_producer_name("arbalest");
  for (const auto& [domain, version] : graph.opsets) {
    auto& opset = *model.add_opset_import();
    opset.set_domain(domain);
    opset.set_version(version);
    if (domain.empty()) model.set_ir_version(version > 20 ? 10 : version > 18 ? 9 : 8);
  }
  for (const auto& [key, value] : options.metadata) {
    auto& entry = *model.add_metadata_props();
    entry.set_key(key);
    entry.set_value(value);
  }
  onnx::GraphProto& proto = *model.mutable_graph();
  proto.set_name(graph.name);
  const auto name = [&](ValueId id) { return id == kNone ? std::string() : graph.values[id].name; };
  for (const ValueId input : graph.inputs) fill(*proto.add_input(), graph.values[input]);
  for (const ValueId output : graph.outputs) fill(*proto.add_output(), graph.values[output]);
  std::optional<ExternalWriter> external;
  if (needs_external_data(graph, options.external_data)) external.emplace(external_data_path(path));
  for (const Value& value : graph.values) {
    if (value.producer != kNone || value.role == Role::Input) continue;
    const bool constant = value.role == Role::Constant && is_floating(value.type.dtype);
    onnx::TensorProto& content = constant ? add_constant(proto, value) : *proto.add_initializer();
    fill(content, value);
    if (external && !constant) external->take(content);
  }
  for (const Node& node : graph.nodes) {
    onnx::NodeProto& each = *proto.add_node();
    each.set_name(node.name);
    each.set_domain(node.op->domain);
    each.set_op_type(node.op->name);
    for (const ValueId input : node.inputs) each.add_input(name(input));
    for (const ValueId output : node.outputs) each.add_output(name(output));
    for (const NamedAttribute& attribute : node.attributes) fill(*each.add_attribute(), attribute);
  }
  std::string content;
  if (model.ByteSizeLong() > size_t(std::numeric_limits<int>::max()) || !model.SerializeToString(&content)) {
    throw RunError(fmt::format("{}: the model exceeds 2 GiB without its initialisers, which ONNX cannot state", path));
  }
  AtomicFile file(path);
  file.write(content);
  if (external) external->commit();
  file.commit();
  return proto.node_size();
}

}  // namespace arbalest

#endif
