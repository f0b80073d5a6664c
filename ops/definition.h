// SPDX-License-Identifier: Apache-2.0
#pragma once
// Helpers for operator definitions: checks of operands with precise messages, costs, and attribute specifications.

#include <initializer_list>
#include <string>
#include <string_view>

#include "base/host_device.h"
#include "graph/op.h"

namespace arbalest {

// The type of statistics, losses, biases and parameter gradients for operands of type `compute`: never below Float32.
constexpr DataType master_type(DataType compute) {
  return compute == DataType::Float64 ? DataType::Float64 : DataType::Float32;
}

// Input i, which must be floating; fails with what was found otherwise.
const TensorType& floating_input(const InferContext& context, size_t i);
// Input i, whose elements must be numbers of any type but bool; fails with what was found otherwise.
const TensorType& number_input(const InferContext& context, size_t i);
// A floating input whose rank must be one of `ranks`.
const TensorType& floating_input(const InferContext& context, size_t i, std::initializer_list<size_t> ranks);
// Fails unless input i has the elements and the shape of `expected`, in whatever layout; `why` ends the message: "as
// the channels of 'X' are 16".
void expect_input(const InferContext& context, size_t i, const TensorType& expected, std::string_view why = "");
// "input 'W'", by the op's signature.
std::string input_name(const InferContext& context, size_t i);

// An int attribute that must be 0 or 1.
bool flag_attribute(const Node& node, std::string_view name);
// An int attribute of at least `least`.
int64_t int_attribute_from(const Node& node, std::string_view name, int64_t least);

// A float attribute above 0 and within what a normal float holds: less becomes 0 in kernels.
double positive_float(const Node& node, std::string_view name);

// True if the node gives the attribute another value than the default.
bool is_given(const Node& node, const AttributeSpec& spec);
// Fails if the node gives the attribute and only other choices read it, as it would have no effect: the attribute
// `choice` ("optimizer") is `chosen`. Without readers every choice may have the attribute.
void refuse_unread(const Node& node, const AttributeSpec& spec, std::string_view choice, const std::string& chosen,
                   const std::vector<std::string>& readers);

// True for each of `rank` axes that the attribute or operand `axes` names, each once. Negative ones count from the end.
std::vector<bool> named_axes(const InferContext& context, int64_t rank);

// The attribute `ignore_index` of losses and metrics whose labels are classes. A sample with this label takes no part:
// it adds neither to a mean nor to what that is divided by.
struct IgnoredLabel {
  bool any = false;
  int32_t label = 0;
  ARBALEST_HOST_DEVICE bool holds(int64_t other) const { return any && other == label; }
};

AttributeSpec ignore_spec();
// Throws GraphError if the attribute holds more than one label, or one that is no int32.
IgnoredLabel ignored_label(const Node& node);

// The version of ONNX's operators that the graph's file asks for; the newest if it names none.
int64_t onnx_version(const Graph& graph);

const TensorType& input_type(const Graph& graph, const Node& node, size_t i);
const TensorType& output_type(const Graph& graph, const Node& node, size_t i);

// 1 where x is 0, and 0 elsewhere, in x's type.
ValueId zeros_of(GradContext& context, ValueId x, const std::string& label);

// A cost of `flops_per_element` for each element of the node's first output.
std::function<Cost(const Graph&, const Node&)> elementwise_cost(double flops_per_element);

// Channels (axis 1) and all other elements of a tensor of rank 2 or 4; memory is rows × channels either way.
struct Rows {
  int64_t rows, channels;
};
Rows rows_of(const TensorType& type);

// "yes"-style description of a list for messages: "[3, 3]".
std::string to_string(const std::vector<int64_t>& values, char open, char close);

// An operand that becomes bfloat16 if precision is lowered, and one that does not.
OperandSpec lowered(std::string name, OperandSpec::Arity arity = OperandSpec::Required);
OperandSpec plain(std::string name, OperandSpec::Arity arity = OperandSpec::Required);

AttributeSpec int_spec(std::string name, int64_t fallback, std::string doc);
AttributeSpec float_spec(std::string name, double fallback, std::string doc);
AttributeSpec string_spec(std::string name, std::string fallback, std::string doc);
AttributeSpec ints_spec(std::string name, std::vector<int64_t> fallback, std::string doc);
AttributeSpec floats_spec(std::string name, std::vector<double> fallback, std::string doc);
AttributeSpec strings_spec(std::string name, std::vector<std::string> fallback, std::string doc);
AttributeSpec required_spec(std::string name, AttributeKind kind, std::string doc);

}  // namespace arbalest
