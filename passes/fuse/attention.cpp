// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <set>

#include "graph/constants.h"
#include "passes/fuse/strided_view.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

using Axes = std::vector<int64_t>;
const Axes kHeadsBeforeRows = {0, 2, 1, 3};    // and back
const Axes kRowsBeforeSamples = {2, 0, 1, 3};  // of what has heads before rows
const Axes kRowsAsColumns = {0, 1, 3, 2};
const Axes kHeadsBeforeColumns = {0, 2, 3, 1};

// An operand of Attention and the index of its heads axis.
struct Heads {
  ValueId value;
  int64_t axis;
};

// Q, K and V: as Attention takes them, and as the matrix products read them, after transpositions.
struct Operands {
  std::array<Heads, 3> heads;
  std::array<ValueId, 3> read;
};

// The scores that a Softmax reads: a product of queries and keys times a number, plus an optional bias.
struct Scores {
  NodeId comparison = kNone;
  ValueId bias = kNone;  // kNone: nothing is added
  double scale = 1;
  std::vector<NodeId> spent;  // nodes that the fused one stands for
  int64_t windows = 1;        // that take turns along the axis of samples
  ValueId mask = kNone;       // of each window, for all heads; the bias is for all windows then
};

class AttentionFusion {
 public:
  explicit AttentionFusion(Graph& graph) : graph_(graph), rewriter_(graph) {}

  void run() {
    for (NodeId n = 0; n < rewriter_.count(); ++n) {
      if (rewriter_.is(n, "Softmax")) fuse(n);
    }
    rewriter_.finish();
  }

 private:
  const Node& node(NodeId id) const { return rewriter_.node(id); }
  const Shape& shape(ValueId value) const { return rewriter_.shape(value); }
  NodeId producer(ValueId value, std::string_view op) const { return rewriter_.producer(value, op); }
  bool is_read_once(ValueId value) const { return rewriter_.readers(value).size() == 1; }

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
    while (is_read_once(value)) {
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
    if (found.comparison == kNone || !is_read_once(product)) return std::nullopt;
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
  std::optional<Scores> biased_scores(ValueId value) const {
    if (const auto plain = plain_scores(value)) return plain;
    const NodeId sum = producer(value, "Add");
    if (sum == kNone || !is_read_once(value)) return std::nullopt;
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

  // `shape` with axes of one element before its own.
  static Shape widened(Shape shape, size_t rank) {
    if (shape.size() < rank) shape.insert(shape.begin(), rank - shape.size(), 1);
    return shape;
  }

  // With a mask for each window of a sample added, too, for which windows have an axis of their own.
  std::optional<Scores> scores_of(ValueId value) const {
    if (const auto found = biased_scores(value)) return found;
    const NodeId together = producer(value, "Reshape");
    const NodeId sum = together == kNone ? kNone : producer(node(together).inputs[0], "Add");
    if (sum == kNone || !is_read_once(value) || !is_read_once(node(sum).outputs[0])) return std::nullopt;
    const Shape &apart = shape(node(sum).outputs[0]), &scores = shape(value);
    if (apart.size() != 5 || scores.size() != 4 || !std::equal(scores.begin() + 1, scores.end(), apart.begin() + 2))
      return std::nullopt;
    for (const size_t i : {size_t{0}, size_t{1}}) {
      const ValueId product = node(sum).inputs[i], mask = node(sum).inputs[1 - i];
      const NodeId reshape = producer(product, "Reshape");
      if (reshape == kNone || !is_read_once(product) || shape(product) != apart) continue;
      if (widened(shape(mask), 5) != Shape{1, apart[1], 1, apart[3], apart[4]}) continue;
      if (shape(node(reshape).inputs[0]) != scores) continue;
      std::optional<Scores> found = biased_scores(node(reshape).inputs[0]);
      if (!found || found->bias == kNone) continue;
      if (widened(shape(found->bias), 4) != Shape{1, scores[1], scores[2], scores[3]}) continue;
      found->mask = mask;
      found->windows = apart[1];
      found->spent.insert(found->spent.end(), {reshape, sum, together});
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

  // The keys that `value` holds as columns, as Attention takes them; none if `value` is no such transposition.
  std::optional<Heads> key_heads(ValueId value) const {
    if (const NodeId turned = transposition(value, kRowsAsColumns); turned != kNone)
      return heads(node(turned).inputs[0]);
    const NodeId moved = transposition(value, kHeadsBeforeColumns);
    if (moved != kNone) return Heads{node(moved).inputs[0], 2};
    return heads_turned_together(value);
  }

  // Whether nothing but `readers` and nodes between them and the tensor reads parts of that, or what is made of them.
  // Nodes that follow from types alone, as Shape does, read nothing.
  bool read_by_no_other(const Operands& operands, ValueId packed, std::set<NodeId> readers) const {
    std::set<NodeId> between;
    for (ValueId value : operands.read) {
      while (value != packed) {
        const NodeId producer = graph_.values[size_t(value)].producer;
        between.insert(producer);
        value = node(producer).inputs[0];
      }
    }
    readers.insert(between.begin(), between.end());
    for (const NodeId each : between) {
      for (const ValueId output : node(each).outputs) {
        if (output == kNone) continue;
        for (const NodeId reader : rewriter_.readers(output)) {
          if (reader == kNone || (!readers.contains(reader) && !node(reader).op->content)) return false;
        }
      }
    }
    return true;
  }

  // Whether the operand is part `i` of the rows of `packed`, (samples, rows, 3 · heads · depth), or with `rows_first`
  // (rows, samples, 3 · heads · depth).
  bool is_part(const StridedView& view, const Heads& operand, int64_t i, const Shape& extents, bool rows_first) const {
    const int64_t part = extents[1] * extents[3];
    Shape expected = extents, strides = {extents[2] * 3 * part, extents[3], 3 * part, 1};
    if (rows_first) strides = {3 * part, extents[3], extents[0] * 3 * part, 1};
    if (operand.axis == 2) {
      std::swap(expected[1], expected[2]);
      std::swap(strides[1], strides[2]);
    }
    for (size_t each = 0; each < strides.size(); ++each) {
      if (expected[each] == 1) strides[each] = 0;
    }
    return shape(operand.value) == expected && view.strides == strides && view.first == i * part;
  }

  // The tensor (samples, rows, 3 · heads · depth) whose rows consist of a row of Q, of K and of V; with `rows_first`
  // its first two axes are the other way round. It is kNone if there is none, or if nodes other than `readers` read
  // parts of it, because these parts then have to exist anyway. `extents` are Q's: samples, heads, rows and depth.
  ValueId packed_operand(const Operands& operands, const Shape& extents, const std::set<NodeId>& readers,
                         bool rows_first) const {
    Shape whole = {extents[0], extents[2], 3 * extents[1] * extents[3]};
    if (rows_first) std::swap(whole[0], whole[1]);
    ValueId packed = kNone;
    for (size_t i = 0; i < 3; ++i) {
      const auto view = view_in(graph_, operands.heads[i].value, whole);
      if (!view || !is_part(*view, operands.heads[i], int64_t(i), extents, rows_first)) return kNone;
      if (i > 0 && view->base != packed) return kNone;
      packed = view->base;
    }
    return read_by_no_other(operands, packed, readers) ? packed : kNone;
  }

  // cuDNN's engines take these; packed, each of them begins at a multiple of 16 bytes, as they want it.
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
    ValueId weights = node(softmax).outputs[0];
    std::vector<NodeId> unchanged;  // as a Dropout leaves them that drops nothing
    while (rewriter_.only_reader(weights, "Identity") != kNone) {
      unchanged.push_back(rewriter_.only_reader(weights));
      weights = node(unchanged.back()).outputs[0];
    }
    const NodeId product = rewriter_.only_reader(weights, "MatMul");
    if (product == kNone || node(product).inputs[0] != weights || (axis != 3 && axis != -1)) return;
    std::optional<Scores> scores = scores_of(node(softmax).inputs[0]);
    if (!scores) return;
    std::vector<NodeId>& spent = scores->spent;
    spent.push_back(softmax);
    spent.insert(spent.end(), unchanged.begin(), unchanged.end());
    const Node& comparison = node(scores->comparison);
    const ValueId q = without_factors(comparison.inputs[0], scores->scale, spent),
                  k = without_factors(comparison.inputs[1], scores->scale, spent), v = node(product).inputs[1];
    if (!fits(q, k, v)) return;
    const std::optional<Heads> keys = key_heads(k);
    if (!keys) return;
    if (scores->windows > 1) add_mask(*scores, product);

    NodeId last = product;
    int64_t head_axis = 1;
    if (const NodeId moved = rewriter_.only_reader(node(product).outputs[0], "Transpose"); moved != kNone) {
      const Axes axes = ints_attribute(node(moved), "perm");
      if (axes == kHeadsBeforeRows || axes == kRowsBeforeSamples) head_axis = 2;
      if (axes == kHeadsBeforeRows) {
        spent.push_back(product);
        last = moved;
      }
      if (axes == kRowsBeforeSamples) rewriter_.attributes(moved).set("perm", Axes{1, 0, 2, 3});
    }
    const Operands operands{{heads(q), *keys, heads(v)}, {q, k, v}};
    std::set<NodeId> readers(spent.begin(), spent.end());
    readers.insert(last);
    const Shape extents = shape(q);
    ValueId packed = packed_operand(operands, extents, readers, false);
    const ValueId turned = packed == kNone ? packed_operand(operands, extents, readers, true) : kNone;
    for (const NodeId each : spent) rewriter_.remove(each);
    if (turned != kNone) {
      packed = rewriter_.add_before(last, "Transpose", rewriter_.value(turned).name + ".samples_first", {turned},
                                    {{"perm", Axes{1, 0, 2}}});
    }
    packed != kNone ? replace_packed(last, packed, extents[1], head_axis, *scores)
                    : replace_apart(last, operands.heads, head_axis, *scores);
  }

  // The mask of each window and the bias that all have become a bias that samples take in turn.
  void add_mask(Scores& scores, NodeId before) {
    const Shape made = shape(node(scores.comparison).outputs[0]);
    const std::string name = rewriter_.value(node(scores.comparison).outputs[0]).name;
    const ValueId mask = rewriter_.add_before(before, "Reshape", name + ".mask", {scores.mask},
                                              {{"shape", Shape{scores.windows, 1, made[2], made[3]}}});
    scores.bias = rewriter_.add_before(before, "Add", name + ".bias", {mask, scores.bias});
  }

  void replace_packed(NodeId id, ValueId packed, int64_t heads, int64_t head_axis, const Scores& scores) {
    replace(id, "arbalest.PackedAttention", {packed}, {{"heads", heads}, {"head_axis", head_axis}}, scores);
  }

  void replace_apart(NodeId id, const std::array<Heads, 3>& heads, int64_t head_axis, const Scores& scores) {
    std::vector<ValueId> inputs;
    Axes axes;
    for (const Heads& each : heads) {
      inputs.push_back(each.value);
      axes.push_back(each.axis);
    }
    axes.push_back(head_axis);
    replace(id, "arbalest.Attention", std::move(inputs), {{"head_axes", axes}}, scores);
  }

  void replace(NodeId id, std::string_view op, std::vector<ValueId> inputs, Attributes attributes,
               const Scores& scores) {
    const ValueId y = node(id).outputs[0];
    const ValueId statistics = rewriter_.add_value(rewriter_.value(y).name + ".statistics", TensorType{});
    if (scores.bias != kNone) inputs.push_back(scores.bias);
    attributes.set("scale", scores.scale);
    rewriter_.become(id, op, std::move(inputs), {y, statistics}, std::move(attributes));
  }

  const Graph& graph_;
  Rewriter rewriter_;
};

}  // namespace

void fuse_attention(Graph& graph) {
  AttentionFusion(graph).run();
}

}  // namespace arbalest
