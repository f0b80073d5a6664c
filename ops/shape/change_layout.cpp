// SPDX-License-Identifier: Apache-2.0

// ChangeLayout: the same tensor in another memory order; the pass place_layouts inserts it.

#include "ops/definition.h"
#include "ops/shape/order/reorder_cpu.h"

namespace arbalest {
namespace {

Layout target_layout(const Node& node) {
  return string_attribute(node, "to") == name_of(Layout::ChannelsLast) ? Layout::ChannelsLast : Layout::RowMajor;
}

std::vector<Sample> change_layout_samples() {
  std::vector<Sample> samples;
  for (const Layout to : {Layout::ChannelsLast, Layout::RowMajor}) {
    for (const Shape& shape : {Shape{2, 3, 5, 7}, Shape{3, 16, 1, 1}, Shape{2, 1, 4, 5}, Shape{3, 4, 9},
                               Shape{2, 3, 2, 4, 5}, Shape{16, 50, 12, 12},
                               // few channels, of lengths that are and are not a multiple of 16 bytes
                               Shape{2, 1, 197}, Shape{3, 3, 1000}, Shape{2, 4, 36, 49}, Shape{70, 4, 7, 7},
                               Shape{30, 6, 196}, Shape{3, 12, 197}, Shape{2, 31, 1000}, Shape{40, 31, 8, 8}}) {
      const TensorType from =
          TensorType{DataType::Float32, shape}.in(to == Layout::RowMajor ? Layout::ChannelsLast : Layout::RowMajor);
      samples.push_back({.name = to_string(shape) + " to " + std::string(name_of(to)),
                         .inputs = {{from}},
                         .attributes = {{"to", std::string(name_of(to))}},
                         .tolerance = 0});
    }
  }
  return samples;
}

}  // namespace

void register_shape_change_layout(OpRegistry& registry) {
  AttributeSpec to = required_spec("to", AttributeKind::String, "row_major or channels_last");
  to.choices = {std::string(name_of(Layout::RowMajor)), std::string(name_of(Layout::ChannelsLast))};
  registry.add({.domain = "arbalest",
                .name = "ChangeLayout",
                .doc = "X in another order in memory",
                .inputs = {{.name = "X", .lowered = true}},
                .outputs = {{.name = "Y", .lowered = true}},
                .attributes = {to},
                .internal = true,
                .layout = std::nullopt,
                .infer = [](InferContext& c) { c.set_output(0, c.input(0).in(target_layout(c.node()))); },
                .grad =
                    [](GradContext& c) {
                      const std::string back(name_of(c.type(c.input(0)).layout));
                      c.add_input_gradient("arbalest.ChangeLayout", {}, {{"to", back}});
                    },
                .cost = elementwise_cost(0),
                .samples = change_layout_samples,
                .cpu = [](const KernelRequest& r) { return reorder_cpu(r.inputs[0], r.outputs[0].layout); }});
}

}  // namespace arbalest
