#include <fmt/format.h>

#include <cstring>
#include <numeric>
#include <optional>

#include "graph/constants.h"
#include "graph/op.h"
#include "graph/passes/passes.h"

namespace arbalest {
namespace {

using Axes = std::vector<int64_t>;
const Axes kHeadsBeforeRows = {0, 2, 1, 3};  // and back
const Axes kRowsAsColumns = {0, 1, 3, 2};
const Axes kHeadsBeforeColumns = {0, 2, 3, 1};

// What an operand of Attention is, and which of its axes is that of heads.
struct Heads {
  ValueId value;
  int64_t axis;
};

// What a Softmax reads: a product of queries and keys times a number, and what is added to that.
struct Scores {
  NodeId comparison = kNone;
  ValueId bias = kNone;  // kNone: nothing is added
  double scale = 1;
  std::vector<NodeId> spent;  // nodes that the fused one stands for
};

class AttentionFusion {
 public:
  explicit AttentionFusion(Graph& graph) : graph_(graph), readers_(graph.consumers()), key_(graph.nodes.size()) {
    std::iota(key_.begin(), key_.end(), int64_t{0});
    for (const ValueId output : graph.outputs) readers_[size_t(output)].push_back(kNone);  // whoever takes it
  }

  void run() {
    for (size_t n = 0; n < graph_.nodes.size(); ++n) {
      if (is(NodeId(n), "Softmax")) fuse(NodeId(n));
    }
    reorder_nodes(graph_, key_);
  }

 private:
  const Node& node(NodeId id) const { return graph_.nodes[size_t(id)]; }
  const Shape& shape(ValueId value) const { return graph_.values[size_t(value)].type.shape; }
  bool is(NodeId id, std::string_view op) const { return id != kNone && node(id).op->qualified_name() == op; }
  NodeId producer(ValueId value, std::string_view op) const {
    const NodeId id = graph_.values[size_t(value)].producer;
    return is(id, op) ? id : kNone;
  }
  NodeId only_reader(ValueId value, std::string_view op) const {
    const auto& readers = readers_[size_t(value)];
    return readers.size() == 1 && is(readers[0], op) ? readers[0] : kNone;
  }

  // The Transpose by `perm` that makes the value; kNone: another node does.
  NodeId transposition(ValueId value, const Axes& perm) const {
    const NodeId id = producer(value, "Transpose");
    return id != kNone && ints_attribute(node(id), "perm") == perm ? id : kNone;
  }

  std::optional<double> factor(ValueId value) const {
    const auto content = content_of(graph_, value);
    const TensorType& type = graph_.values[size_t(value)].type;
    if (!content || type.dtype != DataType::Float32 || type.elements() != 1) return std::nullopt;
    float number;
    std::memcpy(&number, content->data(), sizeof number);
    return number;
  }

  // Takes products with constant numbers off a value that has one reader each, and returns what they multiply.
  ValueId without_factors(ValueId value, double& scale, std::vector<NodeId>& spent) const {
    while (readers_[size_t(value)].size() == 1) {
      const NodeId product = producer(value, "Mul"), quotient = producer(value, "Div");
      const NodeId id = product != kNone ? product : quotient;
      if (id == kNone) break;
      const Node& found = node(id);
      const std::optional<double> second = factor(found.inputs[1]);
      const std::optional<double> first = product != kNone && !second ? factor(found.inputs[0]) : std::nullopt;
      const ValueId other = found.inputs[first ? 1 : 0];
      if ((!first && !second) || shape(other) != shape(value)) break;
      scale *= first ? *first : product != kNone ? *second : 1 / *second;
      spent.push_back(id);
      value = other;
    }
    return value;
  }

  std::optional<Scores> plain_scores(ValueId value) const {
    Scores found;
    const ValueId product = without_factors(value, found.scale, found.spent);
    found.comparison = producer(product, "MatMul");
    if (found.comparison == kNone || readers_[size_t(product)].size() != 1) return std::nullopt;
    found.spent.push_back(found.comparison);
    return found;
  }

  // A row of numbers for each row of scores, the same or others for each sample and each head.
  static bool is_bias(const Shape& bias, const Shape& scores) {
    if (bias.size() < 2 || bias.size() > scores.size()) return false;
    const size_t without = scores.size() - bias.size();
    for (size_t i = 0; i < bias.size(); ++i) {
      const int64_t whole = scores[without + i];
      if (bias[i] != whole && (without + i >= 2 || bias[i] != 1)) return false;
    }
    return true;
  }

  // With the biases or the mask that are added to them.
  std::optional<Scores> scores_of(ValueId value) const {
    if (const auto plain = plain_scores(value)) return plain;
    const NodeId sum = producer(value, "Add");
    if (sum == kNone || readers_[size_t(value)].size() != 1) return std::nullopt;
    for (const size_t i : {size_t{0}, size_t{1}}) {
      const ValueId product = node(sum).inputs[i], bias = node(sum).inputs[1 - i];
      if (shape(product) != shape(value) || !is_bias(shape(bias), shape(value))) continue;
      std::optional<Scores> found = plain_scores(product);
      if (!found) continue;
      found->bias = bias;
      found->spent.push_back(sum);
      return found;
    }
    return std::nullopt;
  }

  Heads heads(ValueId value) const {
    const NodeId moved = transposition(value, kHeadsBeforeRows);
    return moved == kNone ? Heads{value, 1} : Heads{node(moved).inputs[0], 2};
  }

  // Keys as columns that were turned as one batch of matrices, all samples and heads in one axis, as PyTorch's newer
  // exporter has it.
  std::optional<Heads> heads_turned_together(ValueId value) const {
    const NodeId apart = producer(value, "Reshape");
    const NodeId turned = apart == kNone ? kNone : transposition(node(apart).inputs[0], {0, 2, 1});
    const NodeId together = turned == kNone ? kNone : producer(node(turned).inputs[0], "Reshape");
    if (together == kNone) return std::nullopt;
    const ValueId keys = node(together).inputs[0];
    const Shape &columns = shape(value), &matrices = shape(node(together).outputs[0]);
    const bool same = shape(keys) == Shape{columns[0], columns[1], columns[3], columns[2]} &&
                      matrices == Shape{columns[0] * columns[1], columns[3], columns[2]};
    return same ? std::optional(heads(keys)) : std::nullopt;
  }

  // Of keys as columns.
  std::optional<Heads> key_heads(ValueId value) const {
    if (const NodeId turned = transposition(value, kRowsAsColumns); turned != kNone)
      return heads(node(turned).inputs[0]);
    const NodeId moved = transposition(value, kHeadsBeforeColumns);
    if (moved != kNone) return Heads{node(moved).inputs[0], 2};
    return heads_turned_together(value);
  }

  // cuDNN's engines take these.
  bool fits(ValueId q, ValueId k, ValueId v) const {
    const Shape &rows = shape(q), &columns = shape(k), &values = shape(v);
    if (rows.size() != 4 || columns.size() != 4 || values.size() != 4) return false;
    const int64_t depth = rows[3];
    const Shape expected{rows[0], rows[1], columns[3], depth};
    return values == expected && columns == Shape{rows[0], rows[1], depth, columns[3]} && depth % 8 == 0 &&
           depth <= 128;
  }

  void fuse(NodeId softmax) {
    const int64_t axis = int_attribute(node(softmax), "axis");
    const NodeId product = only_reader(node(softmax).outputs[0], "MatMul");
    if (product == kNone || node(product).inputs[0] != node(softmax).outputs[0] || (axis != 3 && axis != -1)) return;
    std::optional<Scores> scores = scores_of(node(softmax).inputs[0]);
    if (!scores) return;
    std::vector<NodeId>& spent = scores->spent;
    spent.push_back(softmax);
    const Node& comparison = node(scores->comparison);
    const ValueId q = without_factors(comparison.inputs[0], scores->scale, spent),
                  k = without_factors(comparison.inputs[1], scores->scale, spent), v = node(product).inputs[1];
    if (!fits(q, k, v)) return;
    const std::optional<Heads> keys = key_heads(k);
    if (!keys) return;

    NodeId last = product;
    if (const NodeId moved = only_reader(node(product).outputs[0], "Transpose");
        moved != kNone && ints_attribute(node(moved), "perm") == kHeadsBeforeRows) {
      spent.push_back(product);
      last = moved;
    }
    const Heads queries = heads(q), values = heads(v);
    for (const NodeId each : spent) key_[size_t(each)] = -1;
    std::vector<ValueId> inputs = {queries.value, keys->value, values.value};
    if (scores->bias != kNone) inputs.push_back(scores->bias);
    replace(last, std::move(inputs),
            {{"scale", scores->scale},
             {"head_axes", Axes{queries.axis, keys->axis, values.axis, last == product ? 1 : 2}}});
  }

  void replace(NodeId id, std::vector<ValueId> inputs, Attributes attributes) {
    const ValueId statistics =
        graph_.add_value(graph_.values[size_t(node(id).outputs[0])].name + ".statistics", TensorType{});
    graph_.values[size_t(statistics)].producer = id;
    Node& fused = graph_.nodes[size_t(id)];
    fused.op = &builtin_ops().get("arbalest.Attention");
    fused.inputs = std::move(inputs);
    fused.outputs.push_back(statistics);
    fused.attributes = std::move(attributes);
    infer(graph_, id);
  }

  Graph& graph_;
  std::vector<std::vector<NodeId>> readers_;  // kNone: the graph's own outputs
  std::vector<int64_t> key_;
};

}  // namespace

void fuse_attention(Graph& graph) {
  AttentionFusion(graph).run();
}

}  // namespace arbalest
