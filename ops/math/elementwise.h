// SPDX-License-Identifier: Apache-2.0
#pragma once
// Helpers of the two kinds of elementwise operators: attributes of their lines, samples, shapes that broadcast.

#include <string>
#include <vector>

#include "ops/definition.h"
#include "ops/math/elementwise_table.h"

namespace arbalest::elementwise {

// The attributes of a line. A choice is 0 for its first name, the default, and 1 for its second.
std::vector<AttributeSpec> none();
std::vector<AttributeSpec> one(std::string name, double fallback);
std::vector<AttributeSpec> two(std::string first, double first_fallback, std::string second, double second_fallback);
std::vector<AttributeSpec> flag(std::string name);  // 0 or 1, by default 0
std::vector<AttributeSpec> choice(std::string name, std::string first, std::string second);

// A line of ops/math/elementwise_table.h, but for its formulas.
struct Line {
  std::string name, doc;
  std::vector<AttributeSpec> attributes;
  double low, high;
};

// The values of the node's attributes, in the order of its operator's. Throws GraphError if a flag is not 0 or 1.
Parameters parameters_of(const Node& node);

// The attributes of samples: the defaults, and if there are any attributes, also other values.
std::vector<Attributes> sample_attributes(const std::vector<AttributeSpec>& specs);

// ONNX's multidirectional broadcasting: shapes are aligned at their last axes, and an extent of 1 fits any. Fails if
// the shapes of the inputs do not fit, or have more axes than Strided takes.
Shape broadcast_shape(const InferContext& context, const std::vector<size_t>& operands);
Shape broadcast_shape(const InferContext& context, size_t a, size_t b);

// The same with elements of `dtype`, laid out as the first of the operands that has all elements.
TensorType broadcast_type(const InferContext& context, const std::vector<size_t>& operands, DataType dtype);

// Types of the tensors that a kernel walks over: the output, then the inputs.
std::vector<TensorType> walked_types(const KernelRequest& request);

}  // namespace arbalest::elementwise
