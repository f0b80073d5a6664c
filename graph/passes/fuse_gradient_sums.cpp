#include <numeric>

#include "graph/op.h"
#include "graph/passes/passes.h"

namespace arbalest {
namespace {

constexpr size_t kSecond = 7;  // BatchNormGrad's dY2

}  // namespace

void fuse_gradient_sums(Graph& graph) {
  const auto readers = graph.consumers();
  std::vector<int64_t> key(graph.nodes.size());
  std::iota(key.begin(), key.end(), int64_t{0});
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    Node& norm = graph.nodes[n];
    if (norm.op->qualified_name() != "arbalest.BatchNormGrad" || norm.inputs.size() > kSecond) continue;
    const ValueId gradient = norm.inputs[0];
    const NodeId add = graph.values[size_t(gradient)].producer;
    if (add == kNone || graph.nodes[size_t(add)].op->qualified_name() != "Add") continue;
    const std::vector<ValueId> terms = graph.nodes[size_t(add)].inputs;
    const TensorType& type = graph.values[size_t(gradient)].type;
    const bool same = graph.values[size_t(terms[0])].type == type && graph.values[size_t(terms[1])].type == type;
    if (!same || readers[size_t(gradient)].size() != 1 || graph.values[size_t(gradient)].view.base != kNone) continue;
    norm.inputs[0] = terms[0];
    norm.inputs.resize(kSecond, kNone);
    norm.inputs.push_back(terms[1]);
    key[size_t(add)] = -1;
  }
  reorder_nodes(graph, key);
}

}  // namespace arbalest
