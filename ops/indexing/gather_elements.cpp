// SPDX-License-Identifier: Apache-2.0

// GatherElements and GatherND: elements, or slices, of a tensor by their indices along one or several axes; and their
// gradients. Kernels are those of places.h.

#include <fmt/format.h>

#include "ops/definition.h"
#include "ops/indexing/gather.h"
#include "ops/indexing/places.h"
#include "ops/shape/copy.h"

namespace arbalest {
namespace {

void infer_elements(InferContext& context) {
  check_element_indices(context);
  context.set_output(0, {context.input(IndexedInput::Data).dtype, context.input(IndexedInput::Indices).shape});
}

void infer_tuples(InferContext& context) {
  context.set_output(0, {context.input(IndexedInput::Data).dtype,
                         shape_by_tuples(context, int_attribute_from(context.node(), "batch_dims", 0))});
}

void infer_picked_gradient(InferContext& context) {
  const TensorType& dy = floating_input(context, 0);
  context.set_output(0, {master_type(dy.dtype), ints_attribute(context.node(), "shape")});
}

void grad_picked(GradContext& c) {
  const Node node = c.node();
  const std::string name = node.op->name == "GatherND" ? "batch_dims" : "axis";
  c.add_input_gradient("arbalest." + node.op->name + "Grad", {c.input(IndexedInput::Indices)},
                       {{name, int_attribute(node, name)}, {"shape", c.type(c.input(0)).shape}});
}

struct PickedCase {
  Shape data, indices;
  int64_t attribute = 0;  // axis, or batch_dims
  DataType type = DataType::Float32, index = DataType::Int64;
};

std::vector<PickedCase> picked_element_cases() {
  return {{{5}, {3}},
          {{7, 8}, {7, 8}, 1},
          {{3, 50}, {3, 9}, -1, DataType::Float32, DataType::Int32},
          {{6, 5}, {40, 4}, 0},
          {{2, 6, 3}, {1, 9, 3}, 1},
          {{3, 4, 5, 2}, {2, 4, 7, 1}, 2, DataType::Float32, DataType::Int32},
          {{4, 3}, {0, 3}},
          {{4, 0}, {2, 0}},
          {{0, 8, 8}, {0, 2, 8}, 1},
          {{0, 8, 8}, {0, 8, 2}, 2}};
}

std::vector<PickedCase> picked_tuple_cases() {
  return {{{5}, {3, 1}},
          {{4, 4, 3}, {6, 2}},
          {{3, 3, 2}, {2, 4, 3}},
          {{3, 40}, {5, 1}, 0, DataType::Float32, DataType::Int32},
          {{2, 3, 3, 5}, {2, 4, 1}, 1},
          {{2, 3, 4, 3}, {2, 3, 6, 2}, 2, DataType::Float32, DataType::Int32},
          {{3, 2}, {1}},
          {{4, 3}, {0, 1}}};
}

std::string name_of_picked(const PickedCase& c) {
  return fmt::format("{} by {} {}, {}", to_string(TensorType{c.type, c.data}), to_string(c.indices),
                     arbalest::name_of(c.index), c.attribute);
}

// Indices that are in range along every axis.
Sample::Input picked_indices(const PickedCase& c) {
  const int64_t least = *std::min_element(c.data.begin(), c.data.end());
  return {.type = {c.index, c.indices}, .low = double(-least), .high = double(least - 1)};
}

std::vector<Sample> picked_samples(std::vector<PickedCase> cases, const char* attribute) {
  const PickedCase first = cases[1];
  for (const DataType type : {DataType::Bool, DataType::Uint8, DataType::Int32, DataType::Int64}) {
    cases.push_back(first);
    cases.back().type = type;
  }
  std::vector<Sample> samples;
  for (const PickedCase& c : cases) {
    samples.push_back({.name = name_of_picked(c),
                       .inputs = {{.type = {c.type, c.data}, .low = 0, .high = 1}, picked_indices(c)},
                       .attributes = {{attribute, c.attribute}},
                       .tolerance = 0});
  }
  return samples;
}

std::vector<Sample> picked_gradient_samples(const std::vector<PickedCase>& cases, const char* attribute,
                                            const char* op) {
  std::vector<Sample> samples;
  for (const PickedCase& c : cases) {
    Shape y = c.indices;
    if (std::string_view(op) == "GatherND") {
      y.pop_back();
      y.insert(y.end(), c.data.begin() + c.attribute + c.indices.back(), c.data.end());
    }
    samples.push_back({.name = name_of_picked(c),
                       .inputs = {{.type = {DataType::Float32, y}}, picked_indices(c)},
                       .attributes = {{attribute, c.attribute}, {"shape", c.data}}});
  }
  return samples;
}

Op picked_gradient(const char* op, AttributeSpec attribute) {
  return {.domain = "arbalest",
          .name = fmt::format("{}Grad", op),
          .doc = fmt::format("the gradient of {}: for each element the sum of dY wherever it was taken", op),
          .inputs = {{.name = "dY", .lowered = true}, {.name = "indices"}},
          .outputs = {{.name = "dX"}},
          .attributes = {std::move(attribute), required_spec("shape", AttributeKind::Ints, "of dX")},
          .internal = true,
          .infer = infer_picked_gradient,
          .cost = elementwise_cost(1)};
}

}  // namespace

void add_gather_elements(OpRegistry& registry) {
  const auto cost = [](const Graph& graph, const Node& node) {
    return Cost{0, 2.0 * double(output_type(graph, node, 0).bytes())};
  };
  const AttributeSpec axis = int_spec("axis", 0, "that the indices are along; negative counts from the end");
  const AttributeSpec batch_dims = int_spec("batch_dims", 0, "so many first axes are batches, each with its indices");
  Op op{.domain = "",
        .name = "GatherElements",
        .doc =
            "at each place of `indices` the element of data that it names along `axis`; on a GPU one that is out of "
            "range gives NaN",
        .inputs = {{.name = "data", .lowered = true}, {.name = "indices"}},
        .outputs = {{.name = "output", .lowered = true}},
        .attributes = {axis},
        .infer = infer_elements,
        .grad = grad_picked,
        .cost = cost,
        .samples = [] { return picked_samples(picked_element_cases(), "axis"); }};
  registry.add(op);
  op.name = "GatherND";
  op.doc =
      "the elements or slices of data that tuples of indices name, those along the last axis of `indices`; on a GPU "
      "one "
      "that is out of range gives NaN";
  op.attributes = {batch_dims};
  op.infer = infer_tuples;
  op.samples = [] { return picked_samples(picked_tuple_cases(), "batch_dims"); };
  registry.add(std::move(op));
  Op elements = picked_gradient("GatherElements", axis), tuples = picked_gradient("GatherND", batch_dims);
  elements.samples = [] { return picked_gradient_samples(picked_element_cases(), "axis", "GatherElements"); };
  tuples.samples = [] { return picked_gradient_samples(picked_tuple_cases(), "batch_dims", "GatherND"); };
  registry.add(std::move(elements));
  registry.add(std::move(tuples));
}

}  // namespace arbalest
