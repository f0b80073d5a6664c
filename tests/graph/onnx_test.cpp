// SPDX-License-Identifier: Apache-2.0

// Binary ONNX: round trips, models as other programs write them, damaged files, and libonnx's own view of our text.

#include <doctest/doctest.h>

#include "base/process.h"
#include "graph/file/graph_file.h"
#include "graph/file/onnx_file.h"
#include "graph/op.h"
#include "ops/builtin_ops.h"
#include "passes/passes.h"
#include "tests/graph/file_fixture.h"

#ifdef ARBALEST_ONNX

#include <onnx/defs/parser.h>
#include <onnx/onnx_pb.h>

#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <random>

using namespace arbalest;

namespace onnx_test {
namespace {

const char* const kNetwork = R"(<ir_version: 8, opset_import: ["" : 17, "arbalest" : 1]>
net (float[4, 3] x) => (float[4, 3] y, float z)
<
  float[2, 2] w = {1, 2.5, -0.03, 1e+10},
  int64[3] shape = {1, -2, 9223372036854775807},
  double[1] precise = {0.1},
  uint8[2] bytes = {0, 255},
  int32[1] count = {-7},
  float s = {0.5}
>
{
  fixed = Constant <value = float[2] {1, 2}> ()
  image, label = arbalest.Prefetch <source = "mnist:data", tags = ["a", "b"]> ()
  c = Conv <strides = [2, 1], group = 3> (x, w)
  e = Clip (c, , w)
  y = Concat <axis = -1> (e, fixed, s)
  z = Relu (s)
  trained = arbalest.Train <lr = 0.1, milestones = [80.0, 120.5], schedule = "step"> (z)
}
)";

Graph network() {
  return read_graph_text(kNetwork, "f", file_test_ops());
}

void write(const std::string& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

std::string save(const FileTestFolder& folder, const onnx::ModelProto& model) {
  const std::string path = folder.file("model.onnx");
  write(path, model.SerializeAsString());
  return path;
}

onnx::ModelProto parse(const std::string& text) {
  onnx::ModelProto model;
  const auto status = onnx::OnnxParser::Parse(model, text.c_str());
  CAPTURE(text);
  REQUIRE_MESSAGE(status.IsOK(), status.ErrorMessage());
  return model;
}

onnx::NodeProto& add_node(onnx::ModelProto& model, const char* op, const char* input, const char* output) {
  onnx::NodeProto& node = *model.mutable_graph()->add_node();
  node.set_op_type(op);
  node.add_input(input);
  node.add_output(output);
  return node;
}

// x: float[batch, 2]
onnx::ModelProto small_model() {
  onnx::ModelProto model;
  onnx::ValueInfoProto& x = *model.mutable_graph()->add_input();
  x.set_name("x");
  x.mutable_type()->mutable_tensor_type()->set_elem_type(onnx::TensorProto::FLOAT);
  auto& shape = *x.mutable_type()->mutable_tensor_type()->mutable_shape();
  shape.add_dim()->set_dim_param("batch");
  shape.add_dim()->set_dim_value(2);
  return model;
}

std::string failure(const FileTestFolder& folder, const onnx::ModelProto& model) {
  return error_of([&] { read_onnx(save(folder, model), file_test_ops()); });
}

bool has(const std::string& text, const std::string& phrase) {
  return text.find(phrase) != std::string::npos;
}

}  // namespace

TEST_CASE("onnx: graph to binary to graph is the identity, text and binary agree") {
  const FileTestFolder folder;
  const Graph graph = network();
  const std::string path = folder.file("net.onnx");
  CHECK(write_onnx(graph, path) == int64_t(graph.nodes.size()) + 1);  // and Constant
  CHECK(difference(graph, read_onnx(path, file_test_ops())) == "");
  CHECK(difference(graph, load_graph(path, file_test_ops())) == "");
  std::filesystem::rename(path, folder.file("net"));
  CHECK(difference(graph, load_graph(folder.file("net"), file_test_ops())) == "");
  Graph state = graph;
  state.add_value("running", {DataType::Float32, {2}}, Role::State);
  CHECK(has(error_of([&] { write_onnx(state, path); }), "'running' is a state"));
}

TEST_CASE("onnx: libonnx's parser reads what we write, and finds the same graph") {
  const FileTestFolder folder;
  const Graph graph = network();
  onnx::ModelProto model = parse(write_graph_text(graph));
  model.set_producer_name("arbalest");                              // whose scalars may be weights
  CHECK(model.graph().node_size() == int(graph.nodes.size()) + 1);  // and Constant
  CHECK(difference(graph, read_onnx(save(folder, model), file_test_ops())) == "");
}

TEST_CASE("onnx: libonnx's parser reads the examples as we write them") {
  const char* source = std::getenv("ARBALEST_SOURCE");
  REQUIRE(source);
  const FileTestFolder folder;
  for (const char* name : {"lenet", "mlp"}) {  // values inside functions have names that it cannot read
    const Graph graph = load_graph(fmt::format("{}/examples/{}.onnxtxt", source, name), builtin_ops());
    const onnx::ModelProto model = parse(write_graph_text(graph));
    CHECK(difference(graph, read_onnx(save(folder, model), builtin_ops())) == "");
  }
}

TEST_CASE("onnx: initialisers without axes are numbers of formulas, not weights") {
  const FileTestFolder folder;
  onnx::ModelProto model = small_model();
  for (const bool list : {false, true}) {
    onnx::TensorProto& number = *model.mutable_graph()->add_initializer();
    number.set_name(list ? "weight" : "half");
    number.set_data_type(onnx::TensorProto::FLOAT);
    if (list) number.add_dims(1);
    number.add_float_data(0.5f);
  }
  const Graph graph = read_onnx(save(folder, model), file_test_ops());
  CHECK(graph.values[graph.find_value("half")].role == Role::Constant);
  CHECK(graph.values[graph.find_value("weight")].role == Role::Parameter);
}

TEST_CASE("onnx: initialisers of other types are an error if they are read, keys of TensorFlow's draws are not") {
  const FileTestFolder folder;
  onnx::ModelProto model = small_model();
  onnx::TensorProto& key = *model.mutable_graph()->add_initializer();
  key.set_name("key");
  key.set_data_type(onnx::TensorProto::UINT64);
  key.add_dims(1);
  key.add_uint64_data(7);
  CHECK(read_onnx(save(folder, model), file_test_ops()).find_value("key") == kNone);
  add_node(model, "StatelessRandomUniformV2", "x", "r").add_input("key");
  CHECK_FALSE(has(failure(folder, model), "UINT64"));
  add_node(model, "Relu", "key", "z");
  CHECK(has(failure(folder, model), "initialiser 'key' has the unsupported type UINT64"));
}

TEST_CASE("onnx: models as exporters write them") {
  const FileTestFolder folder;
  onnx::ModelProto model = small_model();
  onnx::TensorProto& weight = *model.mutable_graph()->add_initializer();
  weight.set_name("conv.weight");
  weight.set_data_type(onnx::TensorProto::FLOAT);
  weight.add_dims(2);
  weight.add_float_data(1.5f);
  weight.add_float_data(-2);
  *model.mutable_graph()->add_input() = model.graph().input(0);
  model.mutable_graph()->mutable_input(1)->set_name("conv.weight");  // old models list initialisers as inputs too
  onnx::NodeProto& conv = add_node(model, "Conv", "x", "h");
  conv.set_name("/conv/Conv");
  conv.add_input("conv.weight");
  onnx::AttributeProto& group = *conv.add_attribute();
  group.set_name("group");
  group.set_type(onnx::AttributeProto::INT);
  group.set_i(2);
  onnx::NodeProto& call = add_node(model, "block", "h", "y");
  call.set_name("/conv/Conv");  // names of nodes need not be unique
  call.set_domain("local");
  onnx::AttributeProto& filters = *call.add_attribute();
  filters.set_name("filters");
  filters.set_type(onnx::AttributeProto::INT);
  filters.set_i(8);
  onnx::FunctionProto& function = *model.add_functions();
  function.set_name("block");
  function.set_domain("local");
  function.add_attribute("filters");
  function.add_input(std::string("a"));
  function.add_output(std::string("b"));
  onnx::NodeProto& inner = *function.add_node();
  inner.set_op_type("Conv");
  inner.set_domain("arbalest");
  inner.add_input(std::string("a"));
  inner.add_output(std::string("c"));
  onnx::AttributeProto& reference = *inner.add_attribute();
  reference.set_name("filters");
  reference.set_type(onnx::AttributeProto::INT);
  reference.set_ref_attr_name("filters");
  onnx::NodeProto& last = *function.add_node();
  last.set_op_type("Relu");
  last.add_input(std::string("c"));
  last.add_output(std::string("b"));
  model.mutable_graph()->add_output()->set_name("y");

  Graph graph = read_onnx(save(folder, model), file_test_ops(), 32);
  CHECK(graph.inputs.size() == 1);
  CHECK(graph.values[graph.inputs[0]].type.shape == Shape{32, 2});
  CHECK(graph.values.at(graph.find_value("conv.weight")).role == Role::Parameter);
  REQUIRE(graph.find_node("/conv/Conv") != kNone);
  CHECK(int_attribute(graph.nodes.at(graph.find_node("/conv/Conv")), "group") == 2);
  CHECK(int_attribute(graph.nodes.at(graph.find_node("y/c")), "filters") == 8);
  verify(graph);
  CHECK(graph.values.at(graph.find_value("y")).type.shape == Shape{32, 2});

  Graph symbolic = read_onnx(save(folder, model), file_test_ops());
  CHECK(has(error_of([&] { verify(symbolic); }), "'x'"));
}

// An entry of `metadata_props`, whose field has this number, as newer versions of ONNX write it.
void add_note(google::protobuf::Message& message, int number, const std::string& key, const std::string& text) {
  onnx::StringStringEntryProto entry;
  entry.set_key(key);
  entry.set_value(text);
  message.GetReflection()->MutableUnknownFields(&message)->AddLengthDelimited(number, entry.SerializeAsString());
}

TEST_CASE("onnx: what PyTorch notes of buffers, constants and detached tensors counts") {
  const FileTestFolder folder;
  onnx::ModelProto model = parse(R"(<ir_version: 8, opset_import: ["" : 17], producer_name: "pytorch">
net (float[N, 2] x) => (float[N, 2] y)
<float[2, 2] fc_weight = {1, 2, 3, 4}, float[2] table = {1, 2}, float[2] lifted_tensor_0 = {3, 4},
 float temperature = {2}, float[1] gate = {1}, float half = {0.5},
 float[2] bn_weight = {1, 2}, float[2] bn_bias = {1, 2}, float[2] bn_mean = {1, 2}, float[2] bn_var = {1, 2}>
{
  a = MatMul (x, fc_weight)
  mean = Identity (bn_mean)
  n = BatchNormalization (a, bn_weight, bn_bias, mean, bn_var)
  clone_1 = Identity (lifted_tensor_0)
  b = Add (n, clone_1)
  c = Mul (b, table)
  d = Identity (c)
  detach = Identity (b)
  e = Mul (d, detach)
  warm = Mul (e, temperature)
  gated = Mul (warm, gate)
  y = Mul (gated, half)
})");
  const std::map<std::string, std::string> kinds = {{"fc_weight", "PARAMETER"},
                                                    {"temperature", "PARAMETER"},
                                                    {"gate", "PARAMETER"},
                                                    {"bn_mean", "BUFFER"},
                                                    {"bn_var", "BUFFER"},
                                                    {"table", "BUFFER"},
                                                    {"lifted_tensor_0", "CONSTANT_TENSOR"}};
  for (const auto& [name, kind] : kinds) {
    onnx::ValueInfoProto& info = *model.mutable_graph()->add_value_info();
    info.set_name(name);
    add_note(info, 4, "pkg.torch.onnx.original_node_name", "p_" + name);
    add_note(info, 4, "pkg.torch.export.graph_signature.InputSpec.kind", kind);
  }
  for (onnx::NodeProto& node : *model.mutable_graph()->mutable_node()) {
    if (node.op_type() != "Identity") continue;
    const std::string call = node.output(0) == "detach" ? "detach" : "clone";
    add_note(node, 9, "pkg.torch.onnx.fx_node", "%x = call_function[target=torch.ops.aten." + call + ".default](…)");
  }
  Graph graph = read_graph_text("g (float[4, 2] x) => () { y = model.net (x) }", folder.file("g.onnxtxt"),
                                builtin_ops(), 0, {{"", save(folder, model)}});
  verify(graph);
  const auto role = [&](const char* name) { return graph.values.at(graph.find_value(name)).role; };
  CHECK(role("fc_weight") == Role::Parameter);
  CHECK(role("temperature") == Role::Parameter);
  CHECK(role("gate") == Role::Parameter);
  CHECK(role("y/half") == Role::Constant);
  CHECK(role("bn_weight") == Role::Parameter);  // of which nothing is noted
  CHECK(role("bn_mean") == Role::Parameter);    // a state, once layers are expanded, also behind an Identity
  CHECK(role("bn_var") == Role::Parameter);
  CHECK(role("table") == Role::Frozen);
  CHECK(role("y/lifted_tensor_0") == Role::Constant);  // not called after the Identity that alone reads it
  const Node* const stop = graph.find_op("arbalest.StopGradient");
  REQUIRE(stop != nullptr);
  CHECK(graph.values.at(stop->outputs[0]).name == "y/detach");
  // A mask may be infinite; what is noted as a parameter may not, whatever reads it.
  const auto with = [&](const char* damaged) {
    onnx::ModelProto other = model;
    for (onnx::TensorProto& tensor : *other.mutable_graph()->mutable_initializer()) {
      if (tensor.name() == damaged) tensor.set_float_data(0, -INFINITY);
    }
    return error_of([&] {
      Graph read = read_graph_text("g (float[4, 2] x) => () { y = model.net (x) }", folder.file("g.onnxtxt"),
                                   builtin_ops(), 0, {{"", save(folder, other)}});
      verify(read);
    });
  };
  CHECK(with("table") == "");
  CHECK(with("gate").ends_with("weight 'gate', element 0: found -inf, expected a finite number"));
}

TEST_CASE("onnx: the padding that PyTorch notes of an embedding gets no gradient") {
  const FileTestFolder folder;
  const auto padding = [&](const std::string& arguments, const char* target = "embedding") {
    onnx::ModelProto model = parse(R"(<ir_version: 8, opset_import: ["" : 17], producer_name: "pytorch">
net (int64[N, 2] x) => (float[N, 2, 3] y)
<float[4, 3] words_weight = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}>
{
  y = Gather (words_weight, x)
})");
    add_note(*model.mutable_graph()->mutable_node(0), 9, "pkg.torch.onnx.fx_node",
             fmt::format("%embedding : [num_users=1] = call_function[target=torch.ops.aten.{}.default](args = ({}), "
                         "kwargs = {{}})",
                         target, arguments));
    const Graph graph = read_graph_text("g (int64[4, 2] x) => () { y = model.net (x) }", folder.file("g.onnxtxt"),
                                        builtin_ops(), 0, {{"", save(folder, model)}});
    return ints_attribute(*graph.find_op("Gather"), "padding_index");
  };
  CHECK(padding("%p_words_weight, %x, 3") == std::vector<int64_t>{3});
  CHECK(padding("%p_words_weight, %x, 0, True, False") == std::vector<int64_t>{0});
  CHECK(padding("%p_words_weight, %x").empty());
  CHECK(padding("%p_words_weight, %x, -1").empty());
  CHECK(padding("%p_words_weight, %x, 1", "index_select").empty());
}

TEST_CASE("onnx: a detached tensor that PyTorch's optimiser has taken away is a warning") {
  const FileTestFolder folder;
  static std::string text;
  const auto told = [&](const char* call, const char* output, const char* identity, const char* producer = "pytorch") {
    onnx::ModelProto model = small_model();
    model.set_producer_name(producer);
    (*model.add_opset_import()).set_version(17);
    add_note(add_node(model, "Neg", "x", "neg"), 9, "pkg.torch.onnx.fx_node", call);
    onnx::NodeProto& kept = add_node(model, "Identity", "neg", output);
    add_note(kept, 9, "pkg.torch.onnx.fx_node", identity);
    model.mutable_graph()->add_output()->set_name(output);
    text.clear();
    const MessageHandler before = set_warning_handler([](const std::string& message) { text += message; });
    read_onnx(save(folder, model), builtin_ops(), 4);
    set_warning_handler(before);
    return text;
  };
  const char *const detach =
                        "%detach : [num_users=1] = call_function[target=torch.ops.aten.detach.default](args = (%x,))",
                    *const clone = "%clone : [num_users=1] = call_function[target=torch.ops.aten.clone.default](…)",
                    *const reads =
                        "%neg : [num_users=1] = call_function[target=torch.ops.aten.mul.Tensor](args = (%x, "
                        "%detach), kwargs = {})";
  CHECK(has(told(reads, "y", clone), "model.onnx: 'detach' is a detached tensor"));
  CHECK(has(told("", "detach_1", clone), "'detach_1' is a detached tensor"));
  CHECK(has(told("%neg = mul(args = (%detach, %detach_1))", "y", detach), "'detach_1' is a detached tensor"));
  CHECK(told(reads, "y", detach) == "");
  CHECK(told("%neg = mul(args = (%detached_mask, %detach_x))", "y", clone) == "");
  CHECK(told(reads, "y", clone, "other") == "");
}

TEST_CASE("onnx: what PyTorch's optimiser has folded is constant, and a warning if it is made of parameters") {
  const FileTestFolder folder;
  onnx::ModelProto model = parse(R"(<ir_version: 8, opset_import: ["" : 17], producer_name: "pytorch">
net (float[N, 2] x) => (float[N, 2] y)
<float[2, 2] val_14 = {1, 2, 3, 4}, float[2] cos = {1, 2}, float[2] unsqueeze = {3, 4}, float[2] exp_1 = {1, 2}>
{
  a = MatMul (x, val_14)
  b = Mul (a, cos)
  c = Mul (b, unsqueeze)
  y = Mul (c, exp_1)
})");
  const auto fold = [&](const char* name, const char* from) {
    onnx::ValueInfoProto& info = *model.mutable_graph()->add_value_info();
    info.set_name(name);
    add_note(info, 4, "pkg.onnxscript.optimizer.folded_from", from);
  };
  fold("val_14", "['fc.weight', 'val_3']");  // transposed
  fold("cos", "['arange', 'div', 'mul']");
  fold("unsqueeze", "['val_38', 'window']");  // of a buffer
  fold("exp_1", "['A', 'exp', 'neg_2']");
  const auto read = [&](std::string& told) {
    static std::string* text;
    text = &told;
    const MessageHandler before = set_warning_handler([](const std::string& message) { *text += message; });
    Graph graph = read_graph_text("g (float[4, 2] x) => () { y = model.net (x) }", folder.file("g.onnxtxt"),
                                  builtin_ops(), 0, {{"", save(folder, model)}});
    set_warning_handler(before);
    verify(graph);
    return graph;
  };
  const auto is_trained = [](const Graph& graph, const char* name) {
    const ValueId id = graph.find_value(name);
    return id != kNone && graph.values.at(id).role == Role::Parameter;
  };
  std::string told;
  Graph graph = read(told);  // without the names of parameters
  CHECK(told == "");
  CHECK(is_trained(graph, "cos"));
  add_note(*model.mutable_graph(), 16, "pkg.torch.export.ExportedProgram.graph_signature",
           "\n# inputs\np_a: PARAMETER target='A'\np_fc_weight: PARAMETER target='fc.weight'\n"
           "b_window: BUFFER target='window' persistent=True\nx: USER_INPUT\n");
  graph = read(told);
  CHECK(is_trained(graph, "val_14"));
  CHECK(is_trained(graph, "exp_1"));
  CHECK(!is_trained(graph, "cos"));
  CHECK(!is_trained(graph, "unsqueeze"));
  CHECK(has(told, "which is trained in their place: 'exp_1' of 'A'; expected a file that is exported with"));
}

TEST_CASE("onnx: what is stored in float16 is float, and casts to it are none") {
  const FileTestFolder folder;
  onnx::ModelProto model = parse(R"(<ir_version: 8, opset_import: ["" : 17]>
net (float16[N, 2] x, int64[N, 2] whole) => (float16[N, 2] y)
<float16[N, 2] product>
{
  f = Cast <to = 1> (x)
  h = Cast <to = 10> (f)
  n = Cast <to = 10> (whole)
  sum = Add (h, n)
  product = MatMul (sum, weight)
  y = Add (product, bias)
})");
  onnx::TensorProto& weight = *model.mutable_graph()->add_initializer();
  weight.set_name("weight");
  for (int i = 0; i < 2; ++i) weight.add_dims(2);
  weight.set_data_type(onnx::TensorProto::FLOAT16);
  weight.set_raw_data(std::string("\x00\x3c\x00\xc1\xff\x7b\x01\x00", 8));  // little-endian
  onnx::TensorProto& bias = *model.mutable_graph()->add_initializer();
  bias.set_name("bias");
  bias.add_dims(2);
  bias.set_data_type(onnx::TensorProto::FLOAT16);
  for (const int bits : {0x3555, 0xfc00}) bias.add_int32_data(bits);
  Graph graph = read_onnx(save(folder, model), builtin_ops(), 3);
  const auto floats = [&](const char* name) {
    const Value& value = graph.values[graph.find_value(name)];
    CHECK(value.role == Role::Parameter);
    REQUIRE(value.type.dtype == DataType::Float32);
    std::vector<float> numbers(size_t(value.type.elements()));
    REQUIRE(value.initializer.data->size() == numbers.size() * sizeof(float));
    std::memcpy(numbers.data(), value.initializer.data->data(), value.initializer.data->size());
    return numbers;
  };
  CHECK(floats("weight") == std::vector<float>{1, -2.5f, 65504, 5.9604645e-8f});
  CHECK(floats("bias") == std::vector<float>{0.333251953125f, -HUGE_VALF});
  verify(graph);  // types as declared
  CHECK(graph.values[graph.inputs[0]].type == TensorType{DataType::Float32, {3, 2}});
  expand_layers(graph);
  std::vector<std::string> ops;
  for (const Node& node : graph.nodes) ops.push_back(node.op->name);
  CHECK(ops == std::vector<std::string>{"Cast", "Add", "MatMul", "Add"});
  CHECK(graph.values[graph.nodes[0].inputs[0]].name == "whole");
  CHECK(graph.values[graph.nodes[1].inputs[0]].name == "x");
}

TEST_CASE("onnx: numbers in float16 keep their sign, and what is no number stays none") {
  const FileTestFolder folder;
  onnx::ModelProto model = parse(R"(<ir_version: 8, opset_import: ["" : 17]>
net (float16[N, 6] x) => (float16[N, 6] y)
{
  y = Add (x, bias)
})");
  onnx::TensorProto& bias = *model.mutable_graph()->add_initializer();
  bias.set_name("bias");
  bias.add_dims(6);
  bias.set_data_type(onnx::TensorProto::FLOAT16);
  for (const int bits : {0x7e00, 0xfc01, 0x8000, 0x8001, 0x83ff, 0x8400}) bias.add_int32_data(bits);
  const Graph graph = read_onnx(save(folder, model), builtin_ops(), 3);
  const std::vector<std::byte>& data = *graph.values[graph.find_value("bias")].initializer.data;
  std::array<float, 6> numbers = {};
  REQUIRE(data.size() == sizeof numbers);
  std::memcpy(numbers.data(), data.data(), data.size());
  CHECK(std::isnan(numbers[0]));
  CHECK(std::isnan(numbers[1]));
  CHECK(numbers[2] == 0);
  CHECK(std::signbit(numbers[2]));
  CHECK(numbers[3] == -std::ldexp(1.0f, -24));  // the smallest denormal number
  CHECK(numbers[4] == -std::ldexp(1023.0f, -24));
  CHECK(numbers[5] == -std::ldexp(1.0f, -14));  // the smallest normal number
}

TEST_CASE("onnx: what cannot be used is refused, naming node and nearest operator") {
  const FileTestFolder folder;
  onnx::ModelProto unknown = small_model();
  add_node(unknown, "Relo", "x", "y");
  CHECK(
      has(failure(folder, unknown), "model.onnx: node 'y': unknown operator or function 'Relo'; did you mean 'Relu'?"));

  onnx::ModelProto undefined = small_model();
  add_node(undefined, "Relu", "xx", "y");
  CHECK(has(failure(folder, undefined), "model.onnx: node 'y' (Relu): input 'xx' is not defined"));
  undefined.mutable_graph()->mutable_node(undefined.graph().node_size() - 1)->set_op_type("Relo");
  onnx::NodeProto& without = add_node(undefined, "Rela", "y", "z");  // reads what has an error
  without.clear_output();
  CHECK(has(failure(folder, undefined), "node 'Rela': unknown operator or function 'Rela'"));

  onnx::ModelProto twice = small_model();
  add_node(twice, "Relu", "x", "y");
  onnx::NodeProto& second = add_node(twice, "Relu", "x", "y");
  CHECK(has(failure(folder, twice), "model.onnx: node 'y' (Relu): value 'y' is defined twice"));
  second.set_name("squash");
  CHECK(has(failure(folder, twice), "model.onnx: node 'squash' (Relu): value 'y' is defined twice"));

  onnx::ModelProto whole = small_model();
  whole.mutable_graph()->mutable_input(0)->mutable_type()->mutable_tensor_type()->set_elem_type(
      onnx::TensorProto::UINT16);
  CHECK(has(failure(folder, whole), "unsupported type UINT16"));

  onnx::ModelProto subgraph = small_model();
  onnx::AttributeProto& branch = *add_node(subgraph, "Relu", "x", "y").add_attribute();
  branch.set_name("then_branch");
  branch.set_type(onnx::AttributeProto::GRAPH);
  CHECK(has(failure(folder, subgraph), "node 'y' (Relu): attribute 'then_branch' has the unsupported type GRAPH"));

  onnx::ModelProto data = small_model();
  onnx::TensorProto& weight = *data.mutable_graph()->add_initializer();
  weight.set_name("w");
  weight.set_data_type(onnx::TensorProto::FLOAT);
  weight.add_dims(1'000'000'000);
  weight.set_raw_data("1234");
  CHECK(has(failure(folder, data), "4000000000 bytes, found 4 bytes"));
  weight.set_data_type(onnx::TensorProto::FLOAT16);
  CHECK(has(failure(folder, data), "2000000000 bytes, found 4 bytes"));
  weight.set_dims(0, -1);
  CHECK(has(failure(folder, data), "is not valid"));
  weight.add_dims(std::numeric_limits<int64_t>::max());
  weight.set_dims(0, std::numeric_limits<int64_t>::max());
  CHECK(has(failure(folder, data), "is not valid"));
  weight.set_data_location(onnx::TensorProto::EXTERNAL);
  weight.set_dims(0, 1);
  weight.set_dims(1, 1);
  CHECK(has(failure(folder, data), "expected a file in the model's folder"));
}

TEST_CASE("onnx: a file of another kind is called what it is") {
  const FileTestFolder folder;
  const std::string path = folder.file("other.onnx");
  const auto refusal = [&](const std::string& content) {
    write(path, content);
    return error_of([&] { read_onnx(path, file_test_ops()); });
  };
  CHECK(has(refusal(""), "other.onnx: expected a binary ONNX model, found an empty file"));
  CHECK(has(refusal(std::string("PK\x03\x04\0\0\x08\x08", 8) + std::string(22, '\0') + "archive/data.pklFB"),
            "found a PyTorch checkpoint; torch.onnx.export()"));
}

TEST_CASE("onnx: damaged files are refused or read, never worse") {
  const FileTestFolder folder;
  const std::string path = folder.file("damaged.onnx");
  write_onnx(network(), path);
  const std::string content = read_whole_file(path);
  for (size_t length : {size_t{1}, content.size() / 2, content.size() - 1}) {
    write(path, content.substr(0, length));
    CHECK(has(error_of([&] { read_onnx(path, file_test_ops()); }), "damaged.onnx: not a binary ONNX model"));
  }
  std::mt19937 random(3);
  int refused = 0;
  for (int round = 0; round < 500; ++round) {
    std::string damaged = content;
    for (int edits = 1 + int(random() % 3); edits > 0; --edits)
      damaged[random() % damaged.size()] = char(random() % 256);
    write(path, damaged);
    refused += error_of([&] { read_onnx(path, file_test_ops()); }) != "";
  }
  CHECK(refused > 50);
}

#else

TEST_CASE("onnx: a build without libonnx says so") {
  const arbalest::FileTestFolder folder;
  const std::string message =
      arbalest::error_of([&] { arbalest::load_graph(folder.file("model.onnx"), arbalest::file_test_ops()); });
  CHECK(message.find("needs a build with libonnx") != std::string::npos);
}

#endif

}  // namespace onnx_test
