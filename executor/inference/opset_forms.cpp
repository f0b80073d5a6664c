// SPDX-License-Identifier: Apache-2.0
#include "executor/inference/opset_forms.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "graph/op.h"
#include "ops/names.h"

namespace arbalest {
namespace {

bool states(const Node& node, size_t input, const char* attribute) {
  return (input < node.inputs.size() && node.inputs[input] != kNone) || node.attributes.find(attribute);
}

void rename(Attributes& attributes, const char* from, const char* to) {
  const Attribute* found = attributes.find(from);
  if (!found) return;
  const Attribute value = *found;
  attributes.erase(from);
  attributes.set(to, value);
}

// The scales are Resize's third operand from opset 11 on, and places are then rounded as `nearest_mode` says.
int64_t take_scales(Node& node) {
  enum : size_t { Roi = 1, Scales = 2 };  // after X
  node.inputs.resize(Scales + 1, kNone);
  std::swap(node.inputs[Roi], node.inputs[Scales]);
  node.attributes.set("coordinate_transformation_mode", std::string("asymmetric"));
  node.attributes.set("nearest_mode", std::string("floor"));
  return 18;
}

int64_t upsample(Graph& graph, Node& node) {
  node.op = &graph.op(op::Resize);
  return take_scales(node);
}

int64_t resize(Graph&, Node& node) {
  if (states(node, 2, "scales") || states(node, 3, "sizes")) return 18;
  rename(node.attributes, "roi", "scales");
  return take_scales(node);
}

int64_t pad(Graph&, Node& node) {
  rename(node.attributes, "value", "constant_value");
  return string_attribute(node, "mode") == "wrap" ? 19 : 18;
}

int64_t top_k(Graph&, Node& node) {
  if (const Attribute* k = node.attributes.find("k")) {
    if (!states(node, 1, "K")) node.attributes.set("K", std::vector<int64_t>{std::get<int64_t>(*k)});
    node.attributes.erase("k");
  }
  return 18;
}

int64_t scatter(Graph& graph, Node& node) {
  node.op = &graph.op(op::ScatterElements);
  return 18;
}

// `saturate` and `round_mode` are of 8-bit types, which graphs here do not have.
int64_t cast(Graph&, Node& node) {
  node.attributes.erase("saturate");
  node.attributes.erase("round_mode");
  return 18;
}

// Before opset 22 a last window that lies in the padding after the image counted.
int64_t pool(Graph& graph, Node& node) {
  int64_t least = 18;
  if (node.is(op::AveragePool)) {
    const std::vector<int64_t> dilations = ints_attribute(node, "dilations");
    const bool dilated = std::any_of(dilations.begin(), dilations.end(), [](int64_t by) { return by != 1; });
    if (!dilated) node.attributes.erase("dilations");
    if (dilated || (int_attribute(node, "ceil_mode") != 0 && int_attribute(node, "count_include_pad") != 0)) least = 19;
  }
  if (int_attribute(node, "ceil_mode") == 0) return least;
  const Shape& from = graph.values[node.inputs[0]].type.shape;
  const Shape& to = graph.values[node.outputs[0]].type.shape;
  const std::vector<int64_t> kernel = ints_attribute(node, "kernel_shape"), strides = ints_attribute(node, "strides"),
                             pads = ints_attribute(node, "pads"), dilations = ints_attribute(node, "dilations");
  const auto of = [](const std::vector<int64_t>& list, size_t i, int64_t fallback) {
    return list.empty() ? fallback : list[i];
  };
  for (size_t axis = 0; axis < kernel.size() && string_attribute(node, "auto_pad") == "NOTSET"; ++axis) {
    const int64_t padded = from[axis + 2] + of(pads, axis, 0) + of(pads, axis + kernel.size(), 0);
    const int64_t free = padded - (of(dilations, axis, 1) * (kernel[axis] - 1) + 1), stride = of(strides, axis, 1);
    if (to[axis + 2] != (free + stride - 1) / stride + 1) least = 22;
  }
  return least;
}

// A scale and a bias for each channel, not for each group, as in opset 21.
int64_t group_norm(Graph& graph, Node& node) {
  const Node norm = node;
  const auto n = NodeId(&node - graph.nodes.data());  // the reference ends when nodes are added
  const int64_t channels = graph.values[norm.inputs[0]].type.shape[1];
  for (const size_t i : {size_t{1}, size_t{2}}) {
    ValueId value = norm.inputs[i];
    const int64_t groups = graph.values[value].type.shape[0];
    if (groups == channels) continue;
    const auto add = [&](std::string_view op, const char* attribute, const Shape& shape) {
      std::string name = fmt::format("{}.{}.{}", norm.name, norm.op->inputs[i].name, op);
      const NodeId id = graph.add_node(graph.op(op), std::move(name), {value}, 1, {{attribute, shape}});
      infer(graph, id);
      value = graph.nodes[id].outputs[0];
    };
    add(op::Reshape, "shape", {groups, 1});
    add(op::Expand, "shape", {groups, channels / groups});
    add(op::Reshape, "shape", {channels});
    graph.nodes[n].inputs[i] = value;
  }
  return 21;
}

int64_t since_20(Graph&, Node&) {
  return 20;
}
int64_t since_23(Graph&, Node&) {
  return 23;
}

// Gradients are no matter of a model that is taken away.
int64_t gather(Graph&, Node& node) {
  node.attributes.erase("padding_index");
  return 18;
}

// Modes have other names before opset 20, in which there are no volumes.
int64_t grid_sample(Graph&, Node& node) {
  const std::string mode = string_attribute(node, "mode"), before = "bi";
  if (mode.starts_with(before)) node.attributes.set("mode", mode.substr(before.size()));
  return 20;
}

// ONNX Runtime has no OneHot of other whole indices with a 64-bit depth.
int64_t one_hot(Graph& graph, Node& node) {
  const ValueId indices = node.inputs[OneHotInput::Indices];
  if (graph.values[indices].type.dtype == DataType::Int64) return 18;
  const auto n = NodeId(&node - graph.nodes.data());  // the reference ends when nodes are added
  const NodeId cast =
      graph.add_node(graph.op(op::Cast), node.name + ".indices", {indices}, 1, {{"to", onnx_number(DataType::Int64)}});
  infer(graph, cast);
  graph.nodes[n].inputs[OneHotInput::Indices] = graph.nodes[cast].outputs[0];
  return 18;
}

// ONNX Runtime's masks of Attention have all rows.
int64_t attention(Graph& graph, Node& node) {
  const ValueId mask = node.input(OnnxAttentionInput::Mask);
  const Shape &queries = graph.values[node.inputs[OnnxAttentionInput::Q]].type.shape,
              whole = mask == kNone ? Shape{} : graph.values[mask].type.shape;
  const int64_t rows = queries[queries.size() - 2];
  if (mask == kNone || (whole.size() > 1 && whole[whole.size() - 2] == rows)) return 23;
  const auto n = NodeId(&node - graph.nodes.data());  // the reference ends when nodes are added
  const NodeId expand =
      graph.add_node(graph.op(op::Expand), node.name + ".mask", {mask}, 1, {{"shape", Shape{rows, whole.back()}}});
  infer(graph, expand);
  graph.nodes[n].inputs[OnnxAttentionInput::Mask] = graph.nodes[expand].outputs[0];
  return 23;
}

int64_t extremum(Graph& graph, Node& node) {
  return graph.values[node.inputs[0]].type.dtype == DataType::Bool ? 20 : 18;
}

}  // namespace

int64_t put_in_opset(Graph& graph) {
  static const std::map<std::string_view, int64_t (*)(Graph&, Node&)> forms = {{op::AffineGrid, since_20},
                                                                               {op::AveragePool, pool},
                                                                               {op::Cast, cast},
                                                                               {op::CastLike, cast},
                                                                               {op::DFT, since_20},
                                                                               {op::Gather, gather},
                                                                               {op::Gelu, since_20},
                                                                               {op::GridSample, grid_sample},
                                                                               {op::GroupNormalization, group_norm},
                                                                               {op::MaxPool, pool},
                                                                               {op::OneHot, one_hot},
                                                                               {op::OnnxAttention, attention},
                                                                               {op::Pad, pad},
                                                                               {op::RMSNormalization, since_23},
                                                                               {op::Resize, resize},
                                                                               {op::RotaryEmbedding, since_23},
                                                                               {op::Scatter, scatter},
                                                                               {op::ReduceMax, extremum},
                                                                               {op::ReduceMin, extremum},
                                                                               {op::TopK, top_k},
                                                                               {op::Upsample, upsample}};
  int64_t opset = 18;
  for (const NodeId n : graph.nodes.ids()) {
    const auto found = forms.find(graph.nodes[n].op->qualified_name());
    if (found != forms.end()) opset = std::max(opset, found->second(graph, graph.nodes[n]));
  }
  return opset;
}

}  // namespace arbalest
