// SPDX-License-Identifier: Apache-2.0

// Operators, their gradients and optimisers against another framework: reference_vectors.json, which make_reference.py
// writes.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>

#include "graph/file/graph_file.h"
#include "ops/builtin_ops.h"
#include "ops/check/compare.h"
#include "passes/autodiff.h"
#include "passes/passes.h"
#include "tests/ops/vectors/run_graph.h"

using namespace arbalest;
using namespace arbalest::test;

namespace reference_test {
namespace {

using Json = nlohmann::json;

std::string read_vectors(const char* name) {
  const char* root = std::getenv("ARBALEST_SOURCE");
  return read_whole_file((std::filesystem::path(root ? root : ".") / "tests/ops/vectors" / name).string());
}

// "cases": operators; "updates": optimisers.
const Json& reference(const char* part) {
  static const Json vectors = Json::parse(read_vectors("reference_vectors.json"));
  return vectors.at(part);
}

Logical tensor_of(const Json& json, DataType floating) {
  const std::string type = json.value("type", "");
  const DataType dtype = type == "int32" ? DataType::Int32 : type == "bool" ? DataType::Bool : floating;
  return {{dtype, json.at("shape").get<Shape>()}, json.at("values").get<std::vector<double>>()};
}

Attributes attributes_of(const Json& json) {
  Attributes attributes;
  for (const auto& [name, value] : json.items()) {
    if (value.is_array() && !value.empty() && value[0].is_string()) {
      attributes.set(name, value.get<std::vector<std::string>>());
    } else if (value.is_array()) {
      attributes.set(name, value.get<std::vector<int64_t>>());
    } else if (value.is_number_integer()) {
      attributes.set(name, value.get<int64_t>());
    } else if (value.is_string()) {
      attributes.set(name, value.get<std::string>());
    } else {
      attributes.set(name, value.get<double>());
    }
  }
  return attributes;
}

// Appends the gradients of inputs of the graph for the value "output_gradient" that flows back into `output`.
std::vector<ValueId> add_gradients_for(Graph& graph, ValueId output, const std::vector<ValueId>& inputs) {
  const auto add = [&](const char* op, const std::vector<ValueId>& operands, const Attributes& attributes) {
    const NodeId node = graph.add_node(graph.op(op), op, operands, 1);
    graph.nodes[node].attributes = attributes;
    infer(graph, node);
    return graph.nodes[node].outputs[0];
  };
  const ValueId given = graph.add_value("output_gradient", graph.values[output].type, Role::Input);
  const ValueId product = add("Mul", {output, given}, {});
  return add_gradients(graph, add("ReduceSum", {product}, {{"keepdims", int64_t{0}}}), inputs);
}

// Sums of some dozen terms: in float each side rounds, in double only the digits that the file has count.
Tolerance tolerance_of(DataType type) {
  return type == DataType::Float64 ? Tolerance{1e-10, 1e-10} : Tolerance{5e-6, 2e-5};
}

void check(const Logical& found, const Logical& expected, const std::string& what,
           std::optional<Tolerance> tolerance = {}) {
  CHECK_MESSAGE(found.type == expected.type, what, " is ", to_string(found.type), ", expected ",
                to_string(expected.type));
  const std::string worst = worst_element(expected.type.shape, found.values, expected.values,
                                          tolerance.value_or(tolerance_of(found.type.dtype)));
  CHECK_MESSAGE(worst.empty(), what, ": ", worst);
}

void check_case(TestDevice& device, const Json& json, DataType floating) {
  const Op* op = builtin_ops().find(json.at("op").get<std::string>());
  REQUIRE_MESSAGE(op, "there is no such operator");
  std::map<std::string, Logical> inputs;
  std::vector<TensorType> types;
  for (const Json& input : json.at("inputs")) {
    const Logical tensor = tensor_of(input, floating);
    inputs.emplace(fmt::format("input_{}", types.size()), tensor);
    types.push_back(tensor.type);
  }
  const Json& outputs = json.at("outputs");
  Case test(*op, types, int(outputs.size()), attributes_of(json.at("attributes")));
  Graph& graph = test.graph;
  graph.outputs = test.get().outputs;
  const std::vector<ValueId> operands = test.get().inputs;
  expand_layers(graph);
  std::vector<ValueId> gradients;
  const Json given = json.value("input_gradients", Json::object());
  if (json.contains("output_gradient")) {
    std::vector<ValueId> wanted;
    for (const auto& [input, gradient] : given.items()) wanted.push_back(operands[std::stoul(input)]);
    gradients = add_gradients_for(graph, graph.outputs[json.value("gradient_of", size_t{0})], wanted);
    inputs.emplace("output_gradient", tensor_of(json.at("output_gradient"), floating));
  }
  make_runnable(graph);
  const int32_t batch = types[0].shape.empty() ? 1 : int32_t(types[0].shape[0]);
  const std::map<std::string, Logical> found = run_graph(device, graph, inputs, {.valid = batch});
  const auto value = [&](ValueId id) { return found.at(graph.values[id].name); };
  for (size_t i = 0; i < outputs.size(); ++i) {
    check(value(graph.outputs[i]), tensor_of(outputs[i], floating), fmt::format("output {}", i));
  }
  size_t checked = 0;
  for (const auto& [input, gradient] : given.items()) {
    const ValueId found_for = gradients[checked++];
    REQUIRE_MESSAGE(found_for != kNone, "no gradient for input ", input);
    check(value(found_for), tensor_of(gradient, floating), "the gradient of input " + input);
  }
}

void check_cases(TestDevice& device, DataType floating) {
  for (const Json& json : reference("cases")) {
    INFO(json.at("name").get<std::string>(), ", ", name_of(floating));
    check_case(device, json, floating);
  }
}

// Several updates in a row, the slots starting from zeros.
void check_updates(TestDevice& device, const Json& json, DataType floating) {
  const Op& op = builtin_ops().get(json.at("op").get<std::string>());
  const Logical weights = tensor_of(json.at("weights"), floating);
  const size_t slots = op.optimizer->slots.size();
  std::vector<Tensor> inputs(2 + slots, make_tensor(weights.type, std::vector<double>(weights.values.size())));
  inputs[UpdateOperands::kWeights] = make_tensor(weights.type, weights.values);
  if (op.optimizer->per_tensor) {
    const Logical tensors = tensor_of(json.at("tensors"), floating);
    inputs.push_back(make_tensor(tensors.type, tensors.values));
  }
  std::vector<TensorType> types;
  for (const Tensor& input : inputs) types.push_back(input.type);
  const Case test(op, types, int(1 + slots), attributes_of(json.at("attributes")));
  int32_t updates = 0;
  std::optional<Tolerance> tolerance;  // matrix units of GPUs take operands in bfloat16
  if (json.value("matrix_units", false) && device.context() != nullptr) tolerance = {1e-2, 1e-2};
  for (const Json& step : json.at("steps")) {
    inputs[UpdateOperands::kGradients] = make_tensor(weights.type, tensor_of(step.at("gradients"), floating).values);
    const StepScalars scalars{.learning_rate = step.at("learning_rate").get<float>(), .updates = updates++};
    Outcome outcome = run_kernel(device, test.get(), test.output_types(), inputs, {.scalars = scalars});
    REQUIRE(outcome.fault == "");
    check({weights.type, values_of(outcome.outputs[0])}, tensor_of(step.at("weights"), floating),
          fmt::format("the weights after update {}", updates), tolerance);
    for (size_t i = 0; i <= slots; ++i) inputs[1 + i] = std::move(outcome.outputs[i]);
  }
}

void check_all_updates(TestDevice& device, DataType floating) {
  for (const Json& json : reference("updates")) {
    INFO(json.at("name").get<std::string>(), ", ", name_of(floating));
    check_updates(device, json, floating);
  }
}

}  // namespace

TEST_CASE("operators and gradients on the CPU agree with JAX, in double and in float") {
  const auto device = make_cpu_device();
  check_cases(*device, DataType::Float64);
  check_cases(*device, DataType::Float32);
}

TEST_CASE("optimisers update weights as Optax's do") {
  const auto device = make_cpu_device();
  check_all_updates(*device, DataType::Float64);
  check_all_updates(*device, DataType::Float32);
  std::set<std::string> judged;
  for (const Json& json : reference("updates")) judged.insert(json.at("op").get<std::string>());
  for (const Op& op : builtin_ops().all()) {
    if (op.optimizer) CHECK_MESSAGE(judged.contains(op.qualified_name()), op.qualified_name(), " has no vectors");
  }
}

TEST_CASE("operators and gradients on a CUDA device agree with JAX") {
  std::string why_not;
  const auto device = make_cuda_device(why_not);
  if (!device) {
    MESSAGE("SKIP: " << why_not);
    return;
  }
  check_cases(*device, DataType::Float32);
  check_all_updates(*device, DataType::Float32);
}

// Nobody else draws the same numbers: tests/passes/dropouts_test.cpp judges their moments.
bool is_random(const Op& op) {
  return op.name.starts_with("Random") || op.name == "Bernoulli";
}

TEST_CASE("every ONNX operator is judged by ONNX's vectors or by another framework's") {
  std::set<std::string> judged;
  for (const Json& json : reference("cases")) judged.insert(json.at("op").get<std::string>());
  std::istringstream lines(read_vectors("onnx_nodes.txt"));
  std::string name, of;
  int passed = 0, all = 0;
  while (lines >> name >> passed >> of >> all) {
    if (passed > 0) judged.insert(name);
  }
  for (const Op& op : builtin_ops().all()) {
    if (!op.domain.empty() || is_random(op)) continue;
    CHECK_MESSAGE(
        judged.contains(op.name), op.name,
        ": no vector of ONNX's passes by onnx_nodes.txt, and reference_vectors.json has none; CONTRIBUTING.md "
        "says how to add them");
  }
}

}  // namespace reference_test
