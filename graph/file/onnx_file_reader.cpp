// SPDX-License-Identifier: Apache-2.0
#include "graph/file/onnx_file.h"

#include <fmt/format.h>

#include "base/number.h"
#include "graph/file/graph_file.h"
#include "graph/file/graph_source.h"

#ifndef ARBALEST_ONNX

namespace arbalest {

GraphSource read_onnx_source(const std::string& path) {
  throw GraphError(Position{path, 0, 0}, "binary ONNX needs a build with libonnx; this one reads graph files as text");
}

Graph read_onnx(const std::string& path, const OpRegistry&, int64_t) {
  read_onnx_source(path);
  return {};
}

}  // namespace arbalest

#else

#include <google/protobuf/unknown_field_set.h>
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/files/file_kind.h"
#include "base/process.h"
#include "graph/file/external_data.h"
#include "graph/file/float_types.h"
#include "graph/file/model_parameters.h"

namespace arbalest {
namespace {

using Attr = onnx::AttributeProto;

// ONNX keeps attributes in single precision. The double that is meant is the one a person would have written: 0.1f is
// 0.1.
double widen(float value) {
  char text[64];
  const auto written = std::to_chars(text, text + sizeof text, value);
  double wide = value;
  std::from_chars(text, written.ptr, wide);
  return wide;
}

// PyTorch's newer exporter (dynamo=True) notes in a file what its operators cannot say, as entries of `metadata_props`.

using google::protobuf::UnknownField;

constexpr int kOfValue = 4, kOfNode = 9, kOfGraph = 16;  // the field's number in each message
constexpr std::string_view kKind = "pkg.torch.export.graph_signature.InputSpec.kind";
constexpr std::string_view kCall = "pkg.torch.onnx.fx_node";
constexpr std::string_view kSignature = "pkg.torch.export.ExportedProgram.graph_signature";
constexpr std::string_view kFoldedFrom = "pkg.onnxscript.optimizer.folded_from";
constexpr std::string_view kDetach = "detach";

// The text of a key. libonnx knows the field from 1.16 on; before, it is one that is not known.
std::string note_of(const google::protobuf::Message& message, int number, std::string_view key) {
  const google::protobuf::Reflection& fields = *message.GetReflection();
  if (const auto* known = message.GetDescriptor()->FindFieldByNumber(number)) {
    for (int i = 0; i < fields.FieldSize(message, known); ++i) {
      onnx::StringStringEntryProto entry;
      entry.CopyFrom(fields.GetRepeatedMessage(message, known, i));
      if (entry.key() == key) return entry.value();
    }
    return "";
  }
  const google::protobuf::UnknownFieldSet& unknown = fields.GetUnknownFields(message);
  for (int i = 0; i < unknown.field_count(); ++i) {
    const UnknownField& field = unknown.field(i);
    onnx::StringStringEntryProto entry;
    if (field.number() != number || field.type() != UnknownField::TYPE_LENGTH_DELIMITED) continue;
    if (entry.ParseFromString(field.length_delimited()) && entry.key() == key) return entry.value();
  }
  return "";
}

// "detach", "detach_1": how PyTorch calls the results.
bool is_name_of_detached(std::string_view name) {
  if (!name.starts_with(kDetach)) return false;
  name.remove_prefix(kDetach.size());
  return name.empty() ||
         (name.size() > 1 && name[0] == '_' && name.find_first_not_of("0123456789", 1) == std::string_view::npos);
}

// The names in "%mul : [num_users=1] = call_function[target=…](args = (%linear_1, %detach), kwargs = {})", the
// result's first.
std::vector<std::string> names_in(const std::string& call) {
  std::vector<std::string> names;
  for (size_t at = call.find('%'); at != call.npos; at = call.find('%', at + 1)) {
    const size_t end = call.find_first_of(" ,)}]:", at);
    names.push_back(call.substr(at + 1, std::min(end, call.size()) - at - 1));
  }
  return names;
}

// The texts between apostrophes.
std::vector<std::string> texts_in(std::string_view text) {
  std::vector<std::string> found;
  for (size_t at = text.find('\''); at != text.npos; at = text.find('\'', at)) {
    const size_t end = std::min(text.find('\'', at + 1), text.size());
    found.emplace_back(text.substr(at + 1, end - at - 1));
    at = end + 1;
  }
  return found;
}

// The names of the module's parameters, as lines such as "p_w: PARAMETER target='w'" state them.
std::set<std::string> parameters_of_module(const onnx::GraphProto& graph) {
  constexpr std::string_view kTarget = ": PARAMETER target=";
  const std::string signature = note_of(graph, kOfGraph, kSignature);
  std::set<std::string> found;
  for (size_t at = signature.find(kTarget); at != signature.npos; at = signature.find(kTarget, at + 1)) {
    const size_t end = std::min(signature.find('\n', at), signature.size());
    const std::vector<std::string> names = texts_in(std::string_view(signature).substr(at, end - at));
    if (!names.empty()) found.insert(names[0]);
  }
  return found;
}

// Whether a result that PyTorch calls so has the numbers of what it is made of: "t", "unsqueeze_1". Exporters call
// theirs "val_14".
bool is_moved(std::string_view name) {
  constexpr std::string_view kMoves[] = {"clone",     "permute",   "reshape", "squeeze", "t",
                                         "transpose", "unsqueeze", "val",     "view"};
  const size_t number = name.find_last_not_of("0123456789");
  if (number != name.npos && number + 1 < name.size() && name[number] == '_') name = name.substr(0, number);
  return std::find(std::begin(kMoves), std::end(kMoves), name) != std::end(kMoves);
}

// Values that the exporter has computed of parameters and stored in their place: "'exp_1' of 'A'".
std::vector<std::string> computed_of_parameters(const onnx::GraphProto& graph) {
  const std::set<std::string> parameters = parameters_of_module(graph);
  std::vector<std::string> found;
  for (const onnx::ValueInfoProto& value : graph.value_info()) {
    const std::vector<std::string> from = texts_in(note_of(value, kOfValue, kFoldedFrom));
    const auto parameter =
        std::find_if(from.begin(), from.end(), [&](auto& name) { return parameters.contains(name); });
    if (parameter == from.end()) continue;
    const bool moved =
        std::all_of(from.begin(), from.end(), [&](auto& name) { return parameters.contains(name) || is_moved(name); });
    if (moved && is_moved(value.name())) continue;
    found.push_back(fmt::format("'{}' of '{}'", printable(value.name()), printable(*parameter)));
  }
  return found;
}

// The kinds of initialisers: parameters of modules, buffers (register_buffer), or constants in the text of `forward`.
// Values that the exporter's optimiser has made of no parameter are constants, too.
std::unordered_map<std::string, SourceValue::Kept> kept_initialisers(const onnx::GraphProto& graph) {
  std::unordered_map<std::string, SourceValue::Kept> kept;
  const std::set<std::string> parameters = parameters_of_module(graph);
  for (const onnx::ValueInfoProto& value : graph.value_info()) {
    const std::string kind = note_of(value, kOfValue, kKind);
    if (kind == "PARAMETER") kept.emplace(value.name(), SourceValue::Kept::Parameter);
    if (kind == "BUFFER") kept.emplace(value.name(), SourceValue::Kept::Buffer);
    if (kind == "CONSTANT_TENSOR") kept.emplace(value.name(), SourceValue::Kept::Constant);
    const std::vector<std::string> from = texts_in(note_of(value, kOfValue, kFoldedFrom));
    const bool known = !parameters.empty() && !from.empty();
    if (known && std::none_of(from.begin(), from.end(), [&](auto& name) { return parameters.contains(name); })) {
      kept.emplace(value.name(), SourceValue::Kept::Constant);
    }
  }
  return kept;
}

// The index of nn.Embedding(padding_idx=…), the third argument of the call that a Gather stands for; none: there is
// none.
// "%embedding : […] = call_function[target=torch.ops.aten.embedding.default](args = (%p_weight, %ids, 1), kwargs = {})"
std::optional<int64_t> padding_index(const onnx::NodeProto& node) {
  if (node.op_type() != "Gather") return std::nullopt;
  const std::string call = note_of(node, kOfNode, kCall);
  const size_t target = call.find("aten.embedding."), arguments = call.find("(args = (", target);
  if (target == call.npos || arguments == call.npos) return std::nullopt;
  const size_t ids = call.find(", %", arguments), third = ids == call.npos ? ids : call.find(", ", ids + 2);
  if (third == call.npos) return std::nullopt;
  int64_t index = -1;
  const char* const text = call.data() + third + 2;
  std::from_chars(text, call.data() + call.size(), index);
  return index < 0 ? std::nullopt : std::optional(index);
}

// tensor.detach(), which is exported as an Identity.
bool is_detached(const onnx::NodeProto& node) {
  return node.op_type() == "Identity" && note_of(node, kOfNode, kCall).find("aten.detach.") != std::string::npos;
}

// The name of a detached tensor that a call reads, or an output is, and that no node makes: the exporter's optimiser
// has taken it away. "" if there is none that the graph's own nodes and outputs tell of.
std::string lost_detached(const onnx::GraphProto& graph) {
  std::set<std::string> read, made;
  for (const onnx::ValueInfoProto& input : graph.input()) made.insert(input.name());
  for (const onnx::ValueInfoProto& output : graph.output()) {
    if (is_name_of_detached(output.name())) read.insert(output.name());
  }
  for (const onnx::NodeProto& node : graph.node()) {
    const std::vector<std::string> names = names_in(note_of(node, kOfNode, kCall));
    if (names.empty()) continue;
    if (is_detached(node)) made.insert({names[0], node.output(0)});
    for (size_t i = 1; i < names.size(); ++i) {
      if (is_name_of_detached(names[i])) read.insert(names[i]);
    }
  }
  for (const std::string& name : read) {
    if (!made.contains(name)) return name;
  }
  return "";
}

class Importer {
 public:
  Importer(const onnx::ModelProto& model, const std::string& path) : model_(model), external_(path) {
    source_.file = path;
  }

  GraphSource run() {
    const onnx::GraphProto& graph = model_.graph();
    source_.name = graph.name();
    for (const auto& opset : model_.opset_import()) source_.opsets.emplace_back(opset.domain(), opset.version());
    for (const auto& entry : model_.metadata_props()) source_.metadata.push_back({{entry.key(), {}}, entry.value()});
    if (graph.sparse_initializer_size()) fail("sparse initialisers are not supported");
    std::unordered_set<std::string_view> initialized;
    for (const onnx::TensorProto& tensor : graph.initializer()) initialized.insert(tensor.name());
    for (const onnx::ValueInfoProto& input : graph.input()) {
      if (!initialized.count(input.name())) source_.inputs.push_back(value(input));
    }
    for (const onnx::ValueInfoProto& output : graph.output()) source_.outputs.push_back(value(output));
    // Other exporters make initialisers of the numbers in formulas: they are no weights.
    const bool ours = model_.producer_name() == "arbalest";
    source_.nodes = nodes(graph.node());
    note_producer(source_, model_.producer_name());
    const std::string lost = source_.producer == "pytorch" ? lost_detached(graph) : "";
    if (!lost.empty()) {
      warn(
          fmt::format("{}: '{}' is a detached tensor, and PyTorch's exporter has optimised that away: gradients go "
                      "through; expected a file that is exported with optimize=False",
                      source_.file, printable(lost)));
    }
    if (const std::vector<std::string> computed = computed_of_parameters(graph); !computed.empty()) {
      warn(
          fmt::format("{}: PyTorch's exporter has stored what it computed of parameters, which is trained in their "
                      "place: {}; expected a file that is exported with optimize=False",
                      source_.file, fmt::join(computed, ", ")));
    }
    const std::unordered_map<std::string, SourceValue::Kept> kept = kept_initialisers(graph);
    std::unordered_set<std::string_view> read;
    for (const SourceNode& node : source_.nodes) {
      for (const SourceName& input : node.inputs) read.insert(input.text);
    }
    std::vector<SourceNode> scalars;
    ErrorList errors;
    for (const onnx::TensorProto& initializer : graph.initializer()) {
      if (!read.contains(initializer.name()) && !is_known(initializer.data_type())) continue;
      SourceTensor content;
      const auto take = [&] { content = tensor(initializer, fmt::format("initialiser '{}'", initializer.name())); };
      if (!errors.attempt(take)) continue;
      const bool number = is_floating(content.type.dtype) && content.type.shape.empty();
      const auto known = kept.find(initializer.name());
      const bool stated = known != kept.end() && known->second == SourceValue::Kept::Parameter;
      if (!ours && number && !stated && !is_of_module(source_, initializer.name())) {
        scalars.push_back(constant(initializer.name(), std::move(content)));
        continue;
      }
      SourceValue& added = source_.values.emplace_back();
      added.name.text = initializer.name();
      added.type = std::move(content.type);
      added.data = std::move(content.data);
      if (known != kept.end()) added.kept = known->second;
    }
    errors.throw_if_any();
    source_.nodes.insert(source_.nodes.begin(), std::make_move_iterator(scalars.begin()),
                         std::make_move_iterator(scalars.end()));
    for (const onnx::FunctionProto& function : model_.functions()) source_.functions.push_back(import(function));
    source_.data_files = external_.files();
    take_nested_graphs_apart(source_);
    if (stops_gradients_) import_own(source_);
    return std::move(source_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw GraphError(Position{source_.file, 0, 0}, message); }

  static SourceNode constant(const std::string& name, SourceTensor content) {
    SourceNode node;
    node.op.text = "Constant";
    node.outputs.push_back({name, {}});
    SourceAttribute& value = node.attributes.emplace_back();
    value.name.text = "value";
    value.tensor = std::move(content);
    return node;
  }

  static bool is_known(int32_t type) { return type == onnx::TensorProto::FLOAT16 || type_of_onnx(type); }

  // float16 is float here: see float_types.h.
  DataType type(int32_t theirs, const std::string& what) const {
    if (theirs == onnx::TensorProto::FLOAT16) return DataType::Float32;
    if (const auto ours = type_of_onnx(theirs)) return *ours;
    const bool known = onnx::TensorProto_DataType_IsValid(theirs);
    fail(fmt::format(
        "{} has the unsupported type {}, expected float, double, float16, bfloat16, bool, uint8, int32 or int64", what,
        known ? onnx::TensorProto_DataType_Name(onnx::TensorProto_DataType(theirs)) : std::to_string(theirs)));
  }

  void check_size(const Shape& shape, const std::string& what) const {
    Shape known = shape;
    std::replace(known.begin(), known.end(), int64_t{-1}, int64_t{1});
    if (!checked_element_count(known)) fail(fmt::format("the shape {} of {} is not valid", to_string(shape), what));
  }

  SourceValue value(const onnx::ValueInfoProto& info) const {
    SourceValue result;
    result.name.text = info.name();
    const std::string what = fmt::format("'{}'", info.name());
    if (!info.has_type()) return result;
    if (!info.type().has_tensor_type()) fail(fmt::format("{} is not a tensor", what));
    const auto& tensor = info.type().tensor_type();
    const DataType dtype = type(tensor.elem_type(), what);
    if (!tensor.has_shape()) return result;
    result.type = TensorType{dtype, {}};
    for (const auto& dim : tensor.shape().dim()) {
      const bool number = dim.has_dim_value() && dim.dim_value() >= 0;
      result.type->shape.push_back(number ? dim.dim_value() : -1);
      result.symbols.push_back(dim.dim_param());
    }
    check_size(result.type->shape, what);
    return result;
  }

  // As many numbers as the shape says, from raw bytes or one of the typed lists.
  SourceTensor tensor(const onnx::TensorProto& proto, const std::string& what) {
    SourceTensor result;
    result.type = {type(proto.data_type(), what), Shape(proto.dims().begin(), proto.dims().end())};
    const auto count = checked_element_count(result.type.shape);
    if (!count) fail(fmt::format("the shape {} of {} is not valid", to_string(result.type.shape), what));
    const bool halves = proto.data_type() == onnx::TensorProto::FLOAT16;
    const int64_t stored = halves ? result.type.bytes() / 2 : result.type.bytes();
    auto bytes = std::make_shared<std::vector<std::byte> >();
    if (proto.data_location() == onnx::TensorProto::EXTERNAL) {
      *bytes = external(proto, uint64_t(stored), what);
    } else if (proto.has_raw_data()) {
      const auto* data = reinterpret_cast<const std::byte*>(proto.raw_data().data());
      bytes->assign(data, data + proto.raw_data().size());  // little-endian, as every host here
    } else if (halves) {
      append<uint16_t>(*bytes, proto.int32_data());  // their bits
    } else {
      switch (result.type.dtype) {
        case DataType::Float32: append<float>(*bytes, proto.float_data()); break;
        case DataType::Float64: append<double>(*bytes, proto.double_data()); break;
        case DataType::Bfloat16: append<uint16_t>(*bytes, proto.int32_data()); break;
        case DataType::Bool:
        case DataType::Uint8: append<uint8_t>(*bytes, proto.int32_data()); break;
        case DataType::Int32: append<int32_t>(*bytes, proto.int32_data()); break;
        case DataType::Int64: append<int64_t>(*bytes, proto.int64_data()); break;
        case DataType::String:
        case DataType::Token: break;
      }
    }
    if (result.type.dtype == DataType::Bool) {
      for (std::byte& flag : *bytes) flag = std::byte(flag != std::byte{0});
    }
    if (int64_t(bytes->size()) != stored) {
      fail(fmt::format("{} is {} of {} bytes, found {} bytes", what, to_string(result.type), stored, bytes->size()));
    }
    if (halves) *bytes = widened_float16(*bytes);
    result.data = std::move(bytes);
    return result;
  }

  std::vector<std::byte> external(const onnx::TensorProto& proto, uint64_t bytes, const std::string& what) {
    ExternalTensor tensor;
    for (const auto& entry : proto.external_data()) {
      if (entry.key() == "location") tensor.location = entry.value();
      if (entry.key() == "offset") tensor.offset = number(entry, what);
      if (entry.key() == "length") tensor.length = number(entry, what);
    }
    try {
      return external_.read(tensor, bytes);
    } catch (const RunError& error) {
      fail(fmt::format("{}: {}", what, error.what()));
    }
  }

  uint64_t number(const onnx::StringStringEntryProto& entry, const std::string& what) const {
    if (const auto value = read_number<uint64_t>(entry.value())) return *value;
    fail(fmt::format("{}: the {} of its data is '{}', expected a whole number of bytes", what, entry.key(),
                     printable(entry.value())));
  }

  template <typename T, typename Numbers>
  static void append(std::vector<std::byte>& bytes, const Numbers& numbers) {
    bytes.resize(size_t(numbers.size()) * sizeof(T));
    for (int i = 0; i < numbers.size(); ++i) {
      const T number = T(numbers.Get(i));
      std::memcpy(bytes.data() + size_t(i) * sizeof(T), &number, sizeof(T));
    }
  }

  std::vector<SourceNode> nodes(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& protos) {
    std::vector<SourceNode> result;
    std::unordered_set<std::string> taken;  // names of nodes are optional and need not be unique
    for (const onnx::NodeProto& proto : protos) {
      for (const std::string& output : proto.output()) taken.insert(output);
    }
    for (const onnx::NodeProto& proto : protos) {
      SourceNode node;
      const bool first = proto.output_size() && proto.output(0) == proto.name();
      if (!proto.name().empty() && !first && taken.insert(proto.name()).second) node.label.text = proto.name();
      node.domain = proto.domain();
      node.op.text = proto.op_type();
      for (const std::string& input : proto.input()) node.inputs.push_back({input, {}});
      for (const std::string& output : proto.output()) node.outputs.push_back({output, {}});
      if (node.op.text.starts_with("StatelessRandom") && node.inputs.size() > 1)
        node.inputs.resize(1);  // without TensorFlow's keys and counters
      const std::string what =
          fmt::format("node '{}' ({})", proto.output_size() ? proto.output(0) : proto.name(), proto.op_type());
      for (const Attr& each : proto.attribute()) {
        node.attributes.push_back(attribute(each, what));
        if (each.type() == Attr::GRAPH && (proto.op_type() == "If" || proto.op_type() == "SequenceMap")) {
          node.attributes.back().unsupported.clear();
          node.attributes.back().graph = branch(each.g());
        }
      }
      cast_to_float_instead(node, kOnnxFloat16);
      if (const auto index = padding_index(proto)) {
        SourceAttribute& added = node.attributes.emplace_back();
        added.name.text = "padding_index";
        added.value = std::vector<int64_t>{*index};
      }
      if (is_detached(proto)) {
        node.domain = kOwnDomain;
        node.op.text = "StopGradient";
        stops_gradients_ = true;
      }
      result.push_back(std::move(node));
    }
    return result;
  }

  SourceAttribute attribute(const Attr& proto, const std::string& owner) {
    SourceAttribute result;
    result.name.text = proto.name();
    result.reference = proto.ref_attr_name();
    result.kind = kind(proto.type());
    if (!result.reference.empty()) return result;
    switch (proto.type()) {
      case Attr::INT: result.value = proto.i(); break;
      case Attr::FLOAT: result.value = widen(proto.f()); break;
      case Attr::STRING: result.value = proto.s(); break;
      case Attr::INTS: result.value = std::vector<int64_t>(proto.ints().begin(), proto.ints().end()); break;
      case Attr::FLOATS: {
        std::vector<double> numbers;
        for (const float number : proto.floats()) numbers.push_back(widen(number));
        result.value = std::move(numbers);
        break;
      }
      case Attr::STRINGS:
        result.value = std::vector<std::string>(proto.strings().begin(), proto.strings().end());
        break;
      case Attr::TENSOR:
        result.tensor = tensor(proto.t(), fmt::format("attribute '{}' of {}", proto.name(), owner));
        break;
      default:  // an error where it is used: unsupported operators are reported first
        result.unsupported = fmt::format("{}: attribute '{}' has the unsupported type {}", owner, proto.name(),
                                         onnx::AttributeProto_AttributeType_Name(proto.type()));
    }
    return result;
  }

  static std::optional<AttributeKind> kind(Attr::AttributeType type) {
    switch (type) {
      case Attr::INT: return AttributeKind::Int;
      case Attr::FLOAT: return AttributeKind::Float;
      case Attr::STRING: return AttributeKind::String;
      case Attr::INTS: return AttributeKind::Ints;
      case Attr::FLOATS: return AttributeKind::Floats;
      case Attr::STRINGS: return AttributeKind::Strings;
      default: return std::nullopt;
    }
  }

  std::shared_ptr<const SourceFunction> branch(const onnx::GraphProto& graph) {
    auto result = std::make_shared<SourceFunction>();
    result->name.text = graph.name();
    if (graph.sparse_initializer_size()) fail("sparse initialisers are not supported");
    for (const auto& input : graph.input()) result->inputs.emplace_back().name.text = input.name();
    for (const auto& output : graph.output()) result->outputs.emplace_back().name.text = output.name();
    for (const onnx::TensorProto& initializer : graph.initializer()) {
      SourceTensor content = tensor(initializer, fmt::format("initialiser '{}'", initializer.name()));
      SourceValue& added = result->values.emplace_back();
      added.name.text = initializer.name();
      added.type = std::move(content.type);
      added.data = std::move(content.data);
    }
    result->nodes = nodes(graph.node());
    return result;
  }

  SourceFunction import(const onnx::FunctionProto& proto) {
    SourceFunction function;
    function.domain = proto.domain();
    function.name.text = proto.name();
    for (const auto& opset : proto.opset_import()) function.opsets.emplace_back(opset.domain(), opset.version());
    for (const std::string& name : proto.attribute()) {
      SourceAttribute required;
      required.name.text = name;
      function.attributes.push_back(std::move(required));
    }
    for (const std::string& input : proto.input()) function.inputs.emplace_back().name.text = input;
    for (const std::string& output : proto.output()) function.outputs.emplace_back().name.text = output;
    function.nodes = nodes(proto.node());
    return function;
  }

  const onnx::ModelProto& model_;
  ExternalData external_;
  bool stops_gradients_ = false;  // in the graph, a branch or a function
  GraphSource source_;
};

[[noreturn]] void fail_other(const std::string& path, std::string_view content) {
  const Position where{path, 0, 0};
  constexpr size_t kHead = 512;
  const std::string_view head = content.substr(0, kHead);
  const std::string kind = kind_of_file({reinterpret_cast<const uint8_t*>(head.data()), head.size()});
  if (kind.empty() || kind == kOnnxFile) throw GraphError(where, "not a binary ONNX model, or a damaged one");
  throw GraphError(where, fmt::format("expected a binary ONNX model, found {}{}", kind,
                                      kind == kPyTorchFile ? "; torch.onnx.export() writes a model as one" : ""));
}

}  // namespace

GraphSource read_onnx_source(const std::string& path) {
  const std::string content = read_whole_file(path);
  onnx::ModelProto model;
  if (content.size() > size_t(std::numeric_limits<int>::max())) {
    throw GraphError(
        Position{path, 0, 0},
        fmt::format("the file has {} bytes, expected less than 2 GiB, protobuf's limit: larger models keep "
                    "their tensors as external data",
                    content.size()));
  }
  // Protobuf bounds the nesting and refuses lengths beyond the content.
  if (!model.ParseFromArray(content.data(), int(content.size())) || !model.has_graph()) {
    fail_other(path, content);
  }
  return Importer(model, path).run();
}

Graph read_onnx(const std::string& path, const OpRegistry& registry, int64_t batch) {
  return build_graph(read_onnx_source(path), registry, batch);
}

}  // namespace arbalest

#endif
