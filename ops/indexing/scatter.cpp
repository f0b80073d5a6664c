// SPDX-License-Identifier: Apache-2.0

// ScatterElements and ScatterND: a tensor with elements, or slices, put in or added at the places that indices name;
// and the gradients of what they are put into. Kernels are those of places.h.

#include <fmt/format.h>

#include "ops/definition.h"
#include "ops/indexing/gather.h"
#include "ops/indexing/places.h"
#include "ops/shape/copy.h"

namespace arbalest {
namespace {

bool by_elements(const Node& node) {
  return node.op->attribute_spec("axis");
}

// Shape of the elements that indices name, which the updates must have.
Shape named_shape(const InferContext& context) {
  if (!by_elements(context.node())) return shape_by_tuples(context, 0);
  check_element_indices(context);
  return context.input(IndexedInput::Indices).shape;
}

void infer_scatter(InferContext& context) {
  using In = IndexedInput;
  const TensorType& data = context.input(In::Data);
  if (reduction_of(context.node()) != Reduction::None) number_input(context, In::Data);
  expect_input(context, In::Updates, {data.dtype, named_shape(context)},
               "elements as in 'data', in the shape that 'indices' name");
  context.set_output(0, data);
}

void infer_scatter_gradient(InferContext& context) {
  floating_input(context, 0);
  named_shape(context);
  context.set_output(0, context.input(0));
}

// The gradients of updates that meet, by how they are reduced: what makes them of other operators.
class MetGradient {
 public:
  explicit MetGradient(GradContext& c) : c_(c) {
    if (by_elements(c.node())) axis_.set("axis", int_attribute(c.node(), "axis"));
  }

  ValueId gather(ValueId x, const char* label) {
    return add(by_elements(c_.node()) ? "GatherElements" : "GatherND", label, {x, c_.input(IndexedInput::Indices)},
               axis_);
  }

  // Those that are equal to the result share its gradient.
  void select() {
    const ValueId chosen = equal(c_.input(IndexedInput::Data), c_.output(0), "data_chosen");
    const ValueId updates = equal(c_.input(IndexedInput::Updates), gather(c_.output(0), "results"), "updates_chosen");
    const ValueId share = add("Div", "share", {c_.output_gradient(0), scatter(chosen, updates, "ties", "add")});
    set(share, chosen, updates);
  }

  // dY times the product of the others: that of all but zeros divided by the factor, or 0 where another one is 0.
  void multiply() {
    using In = IndexedInput;
    const ValueId zeros[] = {zeros_of(c_, c_.input(In::Data), "data_zeros"),
                             zeros_of(c_, c_.input(In::Updates), "updates_zeros")};
    const ValueId factors[] = {add("Add", "data_factors", {c_.input(In::Data), zeros[0]}),
                               add("Add", "updates_factors", {c_.input(In::Updates), zeros[1]})};
    const ValueId product = scatter(factors[0], factors[1], "product", "mul");
    const ValueId count = scatter(zeros[0], zeros[1], "zero_count", "add");
    const auto scale = [&](int i, ValueId all) {
      const ValueId alone = zeros_of(c_, add("Sub", "other_zeros", {all, zeros[i]}), "alone");
      return add("Div", "scale", {alone, factors[i]});
    };
    set(add("Mul", "grad_product", {c_.output_gradient(0), product}), scale(0, count),
        scale(1, gather(count, "zeros")));
  }

 private:
  ValueId add(const char* op, const char* label, std::vector<ValueId> inputs, const Attributes& attributes = {}) {
    return c_.add(op, label, std::move(inputs), 1, attributes)[0];
  }
  ValueId equal(ValueId a, ValueId b, const char* label) {
    const ValueId is_equal = add("Equal", "equal", {a, b});
    return add("Cast", label, {is_equal}, {{"to", onnx_number(c_.type(a).dtype)}});
  }
  ValueId scatter(ValueId data, ValueId updates, const char* label, const char* reduction) {
    Attributes attributes = axis_;
    attributes.set("reduction", std::string(reduction));
    return add(c_.node().op->name.c_str(), label, {data, c_.input(IndexedInput::Indices), updates}, attributes);
  }
  // The gradients: `common` times a scale each.
  void set(ValueId common, ValueId data, ValueId updates) {
    using In = IndexedInput;
    if (c_.needs_gradient(In::Data)) c_.set_input_gradient(In::Data, add("Mul", "grad_data", {common, data}));
    if (!c_.needs_gradient(In::Updates)) return;
    c_.set_input_gradient(In::Updates, add("Mul", "grad_updates", {gather(common, "grad_results"), updates}));
  }

  GradContext& c_;
  Attributes axis_;
};

// Updates get the gradient at the places they were put at, and data gets it everywhere else. If updates were added,
// data gets all of it.
void grad_scatter(GradContext& c) {
  using In = IndexedInput;
  const Node node = c.node();
  const Reduction reduction = reduction_of(node);
  MetGradient met(c);
  if (reduction == Reduction::Mul) return met.multiply();
  if (reduction == Reduction::Max || reduction == Reduction::Min) return met.select();
  const ValueId dy = c.output_gradient(0);
  Attributes axis;
  if (by_elements(node)) axis.set("axis", int_attribute(node, "axis"));
  if (c.needs_gradient(In::Data)) {
    const bool added = reduction == Reduction::Add;
    c.set_input_gradient(
        0,
        added ? dy : c.add("arbalest." + node.op->name + "Grad", "grad_data", {dy, c.input(In::Indices)}, 1, axis)[0]);
  }
  if (c.needs_gradient(In::Updates)) c.set_input_gradient(In::Updates, met.gather(dy, "grad_updates"));
}

struct ScatterCase {
  Shape data, indices;
  int64_t axis = 0;  // of ScatterElements
  double low, high;  // indices; a sample without reduction has all of them different
  DataType type = DataType::Float32, index = DataType::Int64;
};

// Indices that are all different name different places.
std::vector<ScatterCase> scattered_element_cases(bool different) {
  if (different) {
    return {{{5}, {3}, 0, 0, 3},
            {{3, 40}, {3, 9}, -1, 0, 27, DataType::Float32, DataType::Int32},
            {{70, 5}, {12, 4}, 0, -48, 0},
            {{2, 30, 3}, {1, 9, 3}, 1, 0, 27},
            {{4, 3}, {0, 3}, 0, 0, 1}};
  }
  return {
      {{5}, {7}, 0, -5, 4}, {{3, 9}, {3, 20}, 1, 0, 8}, {{8, 3, 5}, {24, 2, 5}, 0, 0, 7}, {{4, 3}, {0, 3}, 0, 0, 3}};
}
std::vector<ScatterCase> scattered_tuple_cases(bool different) {
  if (different) {
    return {{{8}, {4, 1}, 0, 0, 4},
            {{12, 3}, {2, 5, 1}, 0, -10, 0, DataType::Float32, DataType::Int32},
            {{24, 24, 2}, {4, 3, 2}, 0, 0, 24},
            {{15, 17, 16}, {5, 3}, 0, 0, 15},
            {{3, 2}, {1}, 0, 1, 1},
            {{4, 3}, {0, 1}, 0, 0, 1}};
  }
  return {{{8}, {12, 1}, 0, 0, 7},
          {{4, 3, 5}, {2, 5, 1}, 0, -4, 3},
          {{2, 3, 2}, {9, 2}, 0, 0, 1},
          {{4, 3}, {0, 1}, 0, 0, 1}};
}

std::string name_of_scatter(const ScatterCase& c, const char* reduction) {
  return fmt::format("{} in {} by {} {}, axis {}", reduction, to_string(TensorType{c.type, c.data}),
                     to_string(c.indices), arbalest::name_of(c.index), c.axis);
}

Sample::Input scatter_indices(const ScatterCase& c, bool different) {
  return {.type = {c.index, c.indices}, .low = c.low, .high = c.high, .distinct = different && c.low != c.high};
}

Shape updates_of(const ScatterCase& c, bool elements) {
  if (elements) return c.indices;
  Shape shape(c.indices.begin(), c.indices.end() - 1);
  shape.insert(shape.end(), c.data.begin() + c.indices.back(), c.data.end());
  return shape;
}

Sample scatter_sample(const ScatterCase& c, bool elements, const char* reduction, bool different) {
  const std::string_view name = reduction;
  const double low = is_floating(c.type)        ? 0.5
                     : c.type == DataType::Bool ? 0
                                                : 1,
               high = c.type == DataType::Bool ? 1 : 2;
  Sample sample{.name = name_of_scatter(c, reduction),
                .inputs = {{.type = {c.type, c.data}, .low = low, .high = high},
                           scatter_indices(c, different),
                           {.type = {c.type, updates_of(c, elements)}, .low = low, .high = high}},
                .attributes = {{"reduction", std::string(reduction)}},
                .tolerance = name == "add" || name == "mul" ? 1e-6 : 0};
  if (elements) sample.attributes.set("axis", c.axis);
  return sample;
}

std::vector<Sample> scatter_samples(bool elements) {
  std::vector<ScatterCase> different = elements ? scattered_element_cases(true) : scattered_tuple_cases(true);
  const std::vector<ScatterCase> meeting = elements ? scattered_element_cases(false) : scattered_tuple_cases(false);
  for (const DataType type : {DataType::Bool, DataType::Uint8, DataType::Int32, DataType::Int64}) {
    different.push_back(different[1]);
    different.back().type = type;
  }
  std::vector<Sample> samples;
  for (const ScatterCase& c : different) samples.push_back(scatter_sample(c, elements, "none", true));
  for (const char* reduction : {"add", "mul", "max", "min"}) {
    for (const ScatterCase& c : meeting) samples.push_back(scatter_sample(c, elements, reduction, false));
    for (const DataType type : {DataType::Int32, DataType::Int64}) {
      ScatterCase whole = meeting[1];
      whole.type = type;
      samples.push_back(scatter_sample(whole, elements, reduction, false));
    }
  }
  return samples;
}

std::vector<Sample> scatter_gradient_samples(bool elements) {
  std::vector<Sample> samples;
  for (const bool different : {true, false}) {
    for (const ScatterCase& c : elements ? scattered_element_cases(different) : scattered_tuple_cases(different)) {
      samples.push_back({.name = name_of_scatter(c, "zeros"),
                         .inputs = {{.type = {DataType::Float32, c.data}}, scatter_indices(c, different)},
                         .tolerance = 0});
      if (elements) samples.back().attributes.set("axis", c.axis);
    }
  }
  return samples;
}

Op scatter(const char* name, const char* doc, std::vector<AttributeSpec> attributes, bool elements) {
  AttributeSpec reduction =
      string_spec("reduction", "none", "what an update does to the element that it meets; none: takes its place");
  reduction.choices = {"none", "add", "mul", "max", "min"};
  attributes.push_back(std::move(reduction));
  return {.domain = "",
          .name = name,
          .doc = doc,
          .inputs = {{.name = "data", .lowered = true}, {.name = "indices"}, {.name = "updates", .lowered = true}},
          .outputs = {{.name = "output", .lowered = true}},
          .attributes = std::move(attributes),
          .infer = infer_scatter,
          .grad = grad_scatter,
          .cost = elementwise_cost(0),
          .samples = [elements] { return scatter_samples(elements); }};
}

Op scatter_gradient(const char* op, std::vector<AttributeSpec> attributes, bool elements) {
  return {.domain = "arbalest",
          .name = fmt::format("{}Grad", op),
          .doc = fmt::format("the gradient of {}'s data: dY, and 0 where updates were put", op),
          .inputs = {{.name = "dY", .lowered = true}, {.name = "indices"}},
          .outputs = {{.name = "dX", .lowered = true}},
          .attributes = std::move(attributes),
          .internal = true,
          .infer = infer_scatter_gradient,
          .cost = elementwise_cost(0),
          .samples = [elements] { return scatter_gradient_samples(elements); }};
}

}  // namespace

void add_scatter(OpRegistry& registry) {
  const AttributeSpec axis = int_spec("axis", 0, "that the indices are along; negative counts from the end");
  registry.add(scatter("ScatterElements",
                       "data with the elements of updates at the places that `indices` name along `axis`; on a GPU "
                       "those out of range are left out",
                       {axis}, true));
  registry.add(scatter("ScatterND",
                       "data with the elements or slices of updates where tuples of indices name them, those along the "
                       "last axis of `indices`; on a GPU those out of range are left out",
                       {}, false));
  registry.add(scatter_gradient("ScatterElements", {axis}, true));
  registry.add(scatter_gradient("ScatterND", {}, false));
  registry.add(
      {.domain = "",
       .name = "Scatter",
       .doc = "ScatterElements, as older opsets call it",
       .inputs = {{.name = "data", .lowered = true}, {.name = "indices"}, {.name = "updates", .lowered = true}},
       .outputs = {{.name = "output", .lowered = true}},
       .attributes = {axis},
       .infer =
           [](InferContext& context) {
             check_element_indices(context);
             context.set_output(0, context.input(0));
           },
       .expand =
           [](ExpandContext& context) {
             const Node node = context.node();
             context.replace_output(
                 0, context.add("ScatterElements", "", node.inputs, 1, {{"axis", int_attribute(node, "axis")}})[0]);
           }});
}

}  // namespace arbalest
