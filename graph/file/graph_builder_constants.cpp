// SPDX-License-Identifier: Apache-2.0
#include "graph/file/graph_builder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "graph/constants.h"
#include "graph/names.h"
#include "graph/op.h"

namespace arbalest {

bool is_constant_node(std::string_view qualified_name) {
  return qualified_name == "Constant" || qualified_name == "ConstantOfShape";
}
// ONNX's Constant is a value here, not a node.
void GraphBuilder::add_constant(const SourceNode& node, Scope& scope) {
  if (node.attributes.size() != 1 || !node.inputs.empty() || node.outputs.size() != 1) {
    fail(node.op.place,
         "Constant has no inputs, one output and one attribute: value, value_float, value_floats, "
         "value_int or value_ints");
  }
  const SourceAttribute& attribute = node.attributes[0];
  const std::string& kind = attribute.name.text;
  if (kind == "value" && attribute.tensor) {
    return add_data(node.outputs[0], scope, Role::Constant, attribute.tensor->type,
                    {Initializer::Kind::Data, 0, attribute.tensor->data}, &node);
  }
  const std::vector<std::string> kinds = {"value", "value_float", "value_floats", "value_int", "value_ints"};
  if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) {
    fail(attribute.name.place, fmt::format("unknown attribute '{}' of Constant, expected one of {}{}", kind,
                                           fmt::join(kinds, ", "), did_you_mean(kind, kinds)));
  }
  if (kind == "value" || attribute.tensor) {
    fail(attribute.name.place, fmt::format("attribute '{}' of Constant is {} tensor, expected {}", kind,
                                           attribute.tensor ? "a" : "no", attribute.tensor ? "a number" : "a tensor"));
  }
  const Attribute value = resolve_fixed(attribute, scope);
  const std::string what = fmt::format("attribute '{}' of Constant", kind);
  const bool floating = kind.starts_with("value_float");
  const Attribute list =
      converted(value, floating ? AttributeKind::Floats : AttributeKind::Ints, attribute.name.place, what);
  if (floating) {
    const auto& numbers = std::get<std::vector<double>>(list);
    add_numbers(node, scope, DataType::Float32, std::vector<float>(numbers.begin(), numbers.end()),
                kind.ends_with('s'));
  } else {
    add_numbers(node, scope, DataType::Int64, std::get<std::vector<int64_t>>(list), kind.ends_with('s'));
  }
}

// ONNX's ConstantOfShape is one number, by default the float 0, that Expand copies.
void GraphBuilder::add_constant_of_shape(const SourceNode& node, Scope& scope) {
  SourceTensor number{{DataType::Float32, {}}, data_of(std::vector<float>{0}).data};
  for (const SourceAttribute& attribute : node.attributes) {
    if (attribute.name.text != "value" || !attribute.tensor || attribute.tensor->type.elements() != 1) {
      fail(attribute.name.place,
           fmt::format("attribute '{}' of ConstantOfShape is {}, expected only 'value', a tensor of one element",
                       attribute.name.text,
                       attribute.tensor ? to_string(attribute.tensor->type) : std::string("no tensor")));
    }
    number = {{attribute.tensor->type.dtype, {}}, attribute.tensor->data};
  }
  const SourceName value{first_output(node).text + ".value", node.op.place};
  add_data(value, scope, Role::Constant, number.type, {Initializer::Kind::Data, 0, number.data}, &node);
  SourceNode expand = node;
  expand.attributes.clear();
  expand.inputs.insert(expand.inputs.begin(), value);
  add_op(expand, registry_.get(op::Expand), scope);
}

template <typename T>
void GraphBuilder::add_numbers(const SourceNode& node, Scope& scope, DataType dtype, const std::vector<T>& numbers,
                               bool list) {
  const SourceName& name = node.outputs[0];
  if (!list && numbers.size() != 1) fail(name.place, "Constant's value is a list, expected one number");
  add_data(name, scope, Role::Constant, {dtype, list ? Shape{int64_t(numbers.size())} : Shape{}}, data_of(numbers),
           &node);
}

}  // namespace arbalest
