#include "graph/op.h"
#include "graph/passes/passes.h"

namespace arbalest {
namespace {

// Whether arbalest.MaxPoolTaps can stand for the MaxPool: of images, with taps that a byte can number, and without
// indices of its own.
bool can_keep(const Graph& graph, const Node& pool) {
  constexpr size_t kAxes = 4;  // of an image, at most
  constexpr int64_t kTaps = 255;
  if (pool.op->qualified_name() != "MaxPool" || (pool.outputs.size() > 1 && pool.outputs[1] != kNone)) return false;
  int64_t taps = 1;
  for (const int64_t extent : ints_attribute(pool, "kernel_shape")) {
    if (extent > kTaps) return false;
    taps *= extent;  // at most two of them
    if (taps > kTaps) return false;
  }
  return graph.values[size_t(pool.inputs[0])].type.shape.size() <= kAxes;
}

}  // namespace

void keep_maxima(Graph& graph) {
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (graph.nodes[n].op->qualified_name() != "arbalest.MaxPoolGrad") continue;
    const NodeId producer = graph.values[size_t(graph.nodes[n].inputs[2])].producer;
    if (producer == kNone || !can_keep(graph, graph.nodes[size_t(producer)])) continue;
    const Value y = graph.values[size_t(graph.nodes[size_t(producer)].outputs[0])];
    TensorType type = y.type;
    type.dtype = DataType::Uint8;
    const ValueId taps = graph.add_value(y.name + ".taps", type);
    Node& pool = graph.nodes[size_t(producer)];
    pool.op = &builtin_ops().get("arbalest.MaxPoolTaps");
    pool.outputs.resize(1);
    pool.outputs.push_back(taps);
    graph.values[size_t(taps)].producer = producer;
    Node& gradient = graph.nodes[n];
    const Shape& x = graph.values[size_t(gradient.inputs[1])].type.shape;
    gradient.op = &builtin_ops().get("arbalest.MaxPoolTapsGrad");
    gradient.inputs = {gradient.inputs[0], taps};
    gradient.attributes.set("image", Shape(x.begin() + 2, x.end()));
  }
}

}  // namespace arbalest
