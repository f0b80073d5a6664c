// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "graph/constants.h"
#include "graph/layouts.h"
#include "ops/product/attention.h"
#include "passes/fuse/attention_masks.h"
#include "passes/fuse/strided_view.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

using Axes = std::vector<int64_t>;
// Permutations of samples, heads, rows and depth. Samples may have several axes, which stay where they are.
const Axes kHeadsBeforeRows = {0, 2, 1, 3};    // and back
const Axes kRowsBeforeSamples = {2, 0, 1, 3};  // of what has heads before rows
const Axes kRowsAsColumns = {1, 0};            // of the last two
const Axes kHeadsBeforeColumns = {0, 2, 3, 1};
// A score of this much or less has no weight next to others.
constexpr double kNoWeight = -1e4;

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
  std::vector<ScoreSummand> summands;
  double scale = 1;
  ValueId factor = kNone;     // of a head's scores
  std::vector<NodeId> spent;  // nodes that the fused one stands for
  int64_t windows = 1;        // that take turns along the axis of samples
  ValueId mask = kNone;       // of each window, for all heads; the bias is for all windows then
  ScoreBias bias;             // of all summands and the mask
};

// The weights that a Softmax makes, as the product with the values reads them.
struct Weights {
  ValueId value;
  std::vector<NodeId> between;  // nodes after the Softmax
  bool guarded = false;         // weights that are no numbers become 0
};

class AttentionFusion {
 public:
  AttentionFusion(Graph& graph, bool lowered)
      : graph_(graph), rewriter_(graph), masks_(graph, rewriter_), lowered_(lowered) {}

  void run() {
    for (const NodeId n : rewriter_.ids()) {
      if (rewriter_.is(n, op::Softmax)) fuse(n);
    }
    rewriter_.finish();
  }

 private:
  const Node& node(NodeId id) const { return rewriter_.node(id); }
  const Shape& shape(ValueId value) const { return rewriter_.shape(value); }
  NodeId producer(ValueId value, std::string_view op) const { return rewriter_.producer(value, op); }
  bool is_read_once(ValueId value) const { return rewriter_.readers(value).size() == 1; }

  // `axes` of the last axes of `rank`, with those before them where they are.
  static Axes of_last(const Axes& axes, size_t rank) {
    Axes all(rank);
    std::iota(all.begin(), all.end(), int64_t{0});
    const size_t before = rank - std::min(rank, axes.size());
    for (size_t i = before; i < rank; ++i) all[i] = int64_t(before) + axes[i - before];
    return all;
  }

  // Whether the Transpose is by `perm`, of its last axes.
  bool is_by(NodeId transpose, const Axes& perm) const {
    const size_t rank = shape(node(transpose).output()).size();
    return rank >= perm.size() && ints_attribute(node(transpose), "perm") == of_last(perm, rank);
  }

  // The Transpose by `perm` that makes the value; kNone: another node does.
  NodeId transposition(ValueId value, const Axes& perm) const {
    const NodeId id = producer(value, op::Transpose);
    return id != kNone && is_by(id, perm) ? id : kNone;
  }

  // Takes products with constant numbers off a value that has one reader each, and returns what they multiply.
  ValueId without_factors(ValueId value, double& scale, std::vector<NodeId>& spent) const {
    while (is_read_once(value)) {
      const NodeId product = producer(value, op::Mul), quotient = producer(value, op::Div);
      const NodeId id = product != kNone ? product : quotient;
      if (id == kNone) break;
      const Node& found = node(id);
      const auto [a, b] = both_orders(found).front();
      const std::optional<double> second = number_of(graph_, b);
      const std::optional<double> first = product != kNone && !second ? number_of(graph_, a) : std::nullopt;
      const ValueId other = first ? b : a;
      if ((!first && !second) || shape(other) != shape(value)) break;
      scale *= first ? *first : product != kNone ? *second : 1 / *second;
      spent.push_back(id);
      value = other;
    }
    return value;
  }

  // Whether all rows and columns of a head's scores have the number in common.
  static bool is_of_heads(const Shape& factor, const Shape& scores) {
    if (factor.size() > scores.size() || factor.size() < 3) return false;
    for (size_t i = 1; i <= factor.size(); ++i) {
      const int64_t extent = factor[factor.size() - i];
      if (extent != 1 && (i <= 2 || extent != scores[scores.size() - i])) return false;
    }
    return true;
  }

  // Takes off a product with a tensor of a number for each head, such as the temperature of cosine attention.
  ValueId without_factor_of_heads(ValueId value, Scores& found) const {
    const NodeId id = producer(value, op::Mul);
    if (id == kNone || !is_read_once(value)) return value;
    for (const auto& [other, factor] : both_orders(node(id))) {
      if (shape(other) != shape(value) || !is_of_heads(shape(factor), shape(value))) continue;
      found.factor = factor;
      found.spent.push_back(id);
      return other;
    }
    return value;
  }

  std::optional<Scores> plain_scores(ValueId value) const {
    Scores found;
    const ValueId scaled = without_factors(value, found.scale, found.spent);
    const ValueId product = without_factors(without_factor_of_heads(scaled, found), found.scale, found.spent);
    found.comparison = producer(product, op::MatMul);
    if (found.comparison == kNone || !is_read_once(product)) return std::nullopt;
    found.spent.push_back(found.comparison);
    return found;
  }

  // A row of numbers for each row of scores, the same or others for each head, and for each sample or for samples that
  // take turns.
  static bool is_bias(const Shape& bias, const Shape& scores) {
    if (bias.size() < 2 || bias.size() > scores.size()) return false;
    const size_t without = scores.size() - bias.size(), heads = scores.size() - 3;
    bool differ = false;  // an axis of samples before this one has all
    for (size_t i = 0; i < bias.size(); ++i) {
      const bool whole = bias[i] == scores[without + i], may_be_one = without + i <= heads;
      if (!whole && (!may_be_one || bias[i] != 1)) return false;
      if (without + i >= heads) continue;
      if (differ && !whole) return false;
      differ = differ || bias[i] != 1;
    }
    return true;
  }

  // `shape` with axes of one element before its own.
  static Shape widened(Shape shape, size_t rank) {
    if (shape.size() < rank) shape.insert(shape.begin(), rank - shape.size(), 1);
    return shape;
  }

  // Whether a bias or a condition has such numbers, or the same ones for all rows or keys.
  static bool spreads_to(Shape own, const Shape& scores) {
    if (own.empty() || own.size() > scores.size()) return false;
    own = widened(std::move(own), 2);
    for (size_t i = 1; i <= 2; ++i) {
      if (int64_t& extent = own[own.size() - i]; extent == 1) extent = scores[scores.size() - i];
    }
    return is_bias(own, scores);
  }

  // With the biases or the masks that are added to them, and without the keys that conditions hide.
  std::optional<Scores> biased_scores(ValueId value) const {
    if (const auto plain = plain_scores(value)) return plain;
    if (!is_read_once(value)) return std::nullopt;
    if (const NodeId choice = producer(value, op::Where); choice != kNone) return hidden_scores(choice);
    const NodeId sum = producer(value, op::Add);
    if (sum == kNone) return std::nullopt;
    for (const auto& [product, bias] : both_orders(node(sum))) {
      if (shape(product) != shape(value) || !spreads_to(shape(bias), shape(value))) continue;
      std::optional<Scores> found = biased_scores(product);
      if (!found || (!found->summands.empty() && found->summands.back().finite)) continue;
      found->summands.push_back({.bias = bias});
      found->spent.push_back(sum);
      return found;
    }
    return std::nullopt;
  }

  // Scores of which a condition hides some: by minus infinity, or by a number that leaves them no weight if it is known
  // that each row has others.
  std::optional<Scores> hidden_scores(NodeId choice) const {
    using In = WhereInput;
    const Node& found = node(choice);
    for (const bool hidden_if : {false, true}) {
      const ValueId left = found.input(hidden_if ? In::Y : In::X), other = found.input(hidden_if ? In::X : In::Y);
      const std::optional<double> by = number_of(graph_, other);
      if (!by || !(*by <= kNoWeight) || shape(left) != shape(found.output())) continue;
      const ScoreSummand summand{
          .condition = found.input(In::Condition), .hidden_if = hidden_if, .finite = std::isfinite(*by)};
      if (!spreads_to(shape(summand.condition), shape(left))) continue;
      if (summand.finite && !masks_.leaves_some(summand)) continue;
      std::optional<Scores> scores = biased_scores(left);
      if (!scores) continue;
      if (!scores->summands.empty() && (summand.finite || scores->summands.back().finite)) continue;
      scores->summands.push_back(summand);
      scores->spent.push_back(choice);
      return scores;
    }
    return std::nullopt;
  }

  // With a mask for each window of a sample added, too, for which windows have an axis of their own.
  std::optional<Scores> scores_of(ValueId value) const {
    if (const auto found = biased_scores(value)) return found;
    const NodeId together = producer(value, op::Reshape);
    const NodeId sum = together == kNone ? kNone : producer(node(together).input(), op::Add);
    if (sum == kNone || !is_read_once(value) || !is_read_once(node(sum).output())) return std::nullopt;
    const Shape &apart = shape(node(sum).output()), &scores = shape(value);
    if (apart.size() != 5 || scores.size() != 4 || !std::equal(scores.begin() + 1, scores.end(), apart.begin() + 2))
      return std::nullopt;
    for (const auto& [product, mask] : both_orders(node(sum))) {
      const NodeId reshape = producer(product, op::Reshape);
      if (reshape == kNone || !is_read_once(product) || shape(product) != apart) continue;
      if (widened(shape(mask), 5) != Shape{1, apart[1], 1, apart[3], apart[4]}) continue;
      if (shape(node(reshape).input()) != scores) continue;
      std::optional<Scores> found = biased_scores(node(reshape).input());
      if (!found || found->summands.size() != 1 || found->summands[0].condition != kNone) continue;
      if (widened(shape(found->summands[0].bias), 4) != Shape{1, scores[1], scores[2], scores[3]}) continue;
      found->mask = mask;
      found->windows = apart[1];
      found->spent.insert(found->spent.end(), {reshape, sum, together});
      return found;
    }
    return std::nullopt;
  }

  Heads heads(ValueId value) const {
    const NodeId moved = transposition(value, kHeadsBeforeRows);
    return moved == kNone ? Heads{value, 1} : Heads{node(moved).input(), 2};
  }

  // Keys as columns that were turned as one batch of matrices, all samples and heads in one axis, as PyTorch's newer
  // exporter has it.
  std::optional<Heads> heads_turned_together(ValueId value) const {
    if (shape(value).size() != 4) return std::nullopt;
    const NodeId apart = producer(value, op::Reshape);
    const NodeId turned = apart == kNone ? kNone : transposition(node(apart).input(), {0, 2, 1});
    const NodeId together = turned == kNone ? kNone : producer(node(turned).input(), op::Reshape);
    if (together == kNone) return std::nullopt;
    const ValueId keys = node(together).input();
    const Shape &columns = shape(value), &matrices = shape(node(together).output());
    const bool same = shape(keys) == Shape{columns[0], columns[1], columns[3], columns[2]} &&
                      matrices == Shape{columns[0] * columns[1], columns[3], columns[2]};
    return same ? std::optional(heads(keys)) : std::nullopt;
  }

  // The keys that `value` holds as columns, as Attention takes them; none if `value` is no such transposition.
  std::optional<Heads> key_heads(ValueId value, Scores& scores) const {
    if (const NodeId turned = transposition(value, kRowsAsColumns); turned != kNone) {
      const ValueId keys = node(turned).input();
      const ValueId plain = is_read_once(value) ? without_factors(keys, scores.scale, scores.spent) : keys;
      if (plain != keys) scores.spent.push_back(turned);
      return heads(plain);
    }
    const NodeId moved = transposition(value, kHeadsBeforeColumns);
    if (moved != kNone) return Heads{node(moved).input(), 2};
    return heads_turned_together(value);
  }

  // Whether nothing but `readers` and nodes between them and the tensor reads parts of that, or what is made of them.
  // Nodes that follow from types alone, as Shape does, read nothing.
  bool read_by_no_other(const Operands& operands, ValueId packed, std::set<NodeId> readers) const {
    std::set<NodeId> between;
    for (ValueId value : operands.read) {
      while (value != packed) {
        const NodeId producer = graph_.values[value].producer;
        between.insert(producer);
        value = node(producer).input();
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
  // `samples`: the axes that the tensor has for samples.
  ValueId packed_operand(const Operands& operands, const Shape& extents, const std::set<NodeId>& readers, Shape samples,
                         bool rows_first = false) const {
    Shape whole = std::move(samples);
    whole.insert(rows_first ? whole.begin() : whole.end(), extents[2]);
    whole.push_back(3 * extents[1] * extents[3]);
    ValueId packed = kNone;
    for (size_t i = 0; i < 3; ++i) {
      const auto view = view_in(graph_, operands.heads[i].value, whole);
      if (!view || !is_part(*view, operands.heads[i], int64_t(i), extents, rows_first)) return kNone;
      if (i > 0 && view->base != packed) return kNone;
      packed = view->base;
    }
    return read_by_no_other(operands, packed, readers) ? packed : kNone;
  }

  // The depth that engines take such heads with: rows of multiples of 16 bytes or, in bfloat16, few rows of a small,
  // even depth. Rows in bfloat16 are padded with zeros to it, which adds nothing to scores. None: no engine takes them.
  std::optional<int64_t> engine_depth(Shape rows, Shape columns, const Shape& values) const {
    const size_t rank = rows.size();
    if (rank < 3 || columns.size() != rank) return std::nullopt;
    const int64_t depth = rows[rank - 1], whole = (depth + 7) / 8 * 8;
    const bool few = std::max(rows[rank - 2], columns[rank - 1]) <= kMostShortRows && depth <= kMostPairs;
    std::swap(columns[rank - 1], columns[rank - 2]);
    rows[rank - 2] = columns[rank - 2];
    const int64_t made = few && lowered_ && depth % 2 == 0 ? depth : whole;
    const bool pays = made == depth || (lowered_ && made <= 2 * depth);
    return rows == columns && rows == values && made <= 128 && pays ? std::optional(made) : std::nullopt;
  }

  // `from` with its axes of samples as one, and with one head if it has no axis of heads.
  static Shape samples_together(const Shape& from) {
    if (from.size() == 3) return {from[0], 1, from[1], from[2]};
    const int64_t samples = element_count({from.begin(), from.end() - 3});
    return {samples, from[from.size() - 3], from[from.size() - 2], from[from.size() - 1]};
  }
  ValueId samples_together(NodeId before, ValueId value) {
    if (shape(value).size() == 4) return value;
    Shape made = samples_together(shape(value));
    made[0] = -1;
    return rewriter_.add_before(before, op::Reshape, rewriter_.value(value).name + ".together", {value},
                                {{"shape", std::move(made)}});
  }

  // The weights as they are after nodes that alone read the Softmax: those that leave them as they are, as a Dropout
  // does that drops nothing, and a guard, which exporters write for rows that a mask hides as a whole.
  Weights weights_of(NodeId softmax) const {
    Weights found{node(softmax).output()};
    const auto pass = [&](NodeId reader) {
      found.between.push_back(reader);
      found.value = node(reader).output();
    };
    while (true) {
      const std::vector<NodeId>& readers = rewriter_.readers(found.value);
      if (const NodeId same = rewriter_.only_reader(found.value, op::Identity); same != kNone) {
        pass(same);
      } else if (readers.size() == 2 && is_guard(readers[0], readers[1], found.value)) {
        found.between.push_back(readers[0]);
        pass(readers[1]);
        found.guarded = true;
      } else {
        return found;
      }
    }
  }

  // Whether they are Where(IsNaN(weights), 0, weights).
  bool is_guard(NodeId test, NodeId choice, ValueId weights) const {
    using In = WhereInput;
    if (!rewriter_.is(test, op::IsNaN) || !rewriter_.is(choice, op::Where)) return false;
    const Node& found = node(choice);
    return rewriter_.only_reader(node(test).output()) == choice && found.input(In::Y) == weights &&
           found.input(In::Condition) == node(test).output() && number_of(graph_, found.input(In::X)) == 0 &&
           shape(found.output()) == shape(weights);
  }

  // The transposition that alone reads the result of the last of `nodes`. Reshapes between that keep the shape are
  // added to these. Nodes that follow from types alone, as Shape does, read nothing.
  NodeId transposition_after(std::vector<NodeId>& nodes) const {
    while (true) {
      const ValueId value = node(nodes.back()).output();
      NodeId only = kNone;
      for (const NodeId reader : rewriter_.readers(value)) {
        if (reader == kNone || (!node(reader).op->content && only != kNone)) return kNone;
        if (!node(reader).op->content) only = reader;
      }
      if (only == kNone || rewriter_.is(only, op::Transpose)) return only;
      if (!rewriter_.reshapes(only) || shape(node(only).output()) != shape(value)) return kNone;
      nodes.push_back(only);
    }
  }

  // The node that becomes attention, the product or a transposition of its result, and the axis of heads that its
  // result has. `queries`: as the product of queries and keys read them, in the shape of the product's result.
  std::pair<NodeId, int64_t> result_of(NodeId product, ValueId queries, std::vector<NodeId>& spent) {
    std::vector<NodeId> passed = {product};
    const NodeId moved = transposition_after(passed);
    if (moved == kNone) return {product, 1};
    const Axes axes = ints_attribute(node(moved), "perm");
    if (is_by(moved, kHeadsBeforeRows)) {
      for (const NodeId each : passed) rewriter_.replace_reads(node(each).output(), queries);
      spent.insert(spent.end(), passed.begin(), passed.end());
      return {moved, 2};
    }
    if (axes != kRowsBeforeSamples || rewriter_.only_reader(node(product).output()) != moved) return {product, 1};
    rewriter_.attributes(moved).set("perm", Axes{1, 0, 2, 3});
    return {product, 2};
  }

  // Whether the value is made of samples. A batch of one has the extent of what all samples share.
  bool holds_samples(ValueId value) const {
    std::set<ValueId> seen;
    std::vector<ValueId> open = {value};
    while (!open.empty()) {
      const ValueId each = open.back();
      open.pop_back();
      const NodeId id = each == kNone ? kNone : graph_.values[each].producer;
      if (id == kNone || !seen.insert(each).second) continue;
      if (node(id).is(op::Prefetch)) return true;
      if (!node(id).op->content) open.insert(open.end(), node(id).inputs.begin(), node(id).inputs.end());
    }
    return false;
  }

  // The product of weights and values; with `turn`, of values and weights, both with rows as columns.
  struct Product {
    NodeId id = kNone, turn = kNone;  // turn: of the weights
    ValueId values = kNone;           // as it reads them
    Shape shape;                      // of values as rows
  };
  Product product_of(ValueId weights) const {
    const auto reader = [&](ValueId value) { return rewriter_.only_reader(value, op::MatMul); };
    Product found{.id = reader(weights)};
    if (found.id != kNone && node(found.id).input(BinaryInput::A) == weights) {
      found.values = node(found.id).input(BinaryInput::B);
      found.shape = shape(found.values);
      return found;
    }
    found.turn = rewriter_.only_reader(weights, op::Transpose);
    if (found.turn == kNone || !is_by(found.turn, kRowsAsColumns)) return {};
    const ValueId columns = node(found.turn).output();
    found.id = reader(columns);
    if (found.id == kNone || node(found.id).input(BinaryInput::B) != columns) return {};
    found.values = node(found.id).input(BinaryInput::A);
    found.shape = shape(found.values);
    if (found.shape.size() < 2) return {};
    std::swap(found.shape[found.shape.size() - 1], found.shape[found.shape.size() - 2]);
    return found;
  }

  // The rows of which the value has columns: of what a Transpose made it, or as one makes them right before the node.
  ValueId rows_of(NodeId before, ValueId value) {
    const NodeId turn = transposition(value, kRowsAsColumns);
    if (turn != kNone) return node(turn).input();
    return rewriter_.add_before(before, op::Transpose, rewriter_.value(value).name + ".rows", {value},
                                {{"perm", rows_as_columns(shape(value).size())}});
  }

  // Makes a product of values and weights as columns one of weights and values, whose result is turned.
  void turn_product(Product& product, ValueId weights) {
    const ValueId y = node(product.id).output();
    product.values = rows_of(product.id, product.values);
    const ValueId rows = rewriter_.add_value(rewriter_.value(y).name + ".rows", TensorType{});
    rewriter_.become(product.id, op::MatMul, {weights, product.values}, {rows}, {});
    const ValueId columns = rewriter_.add_after(product.id, op::Transpose, rewriter_.value(y).name + ".columns", {rows},
                                                {{"perm", rows_as_columns(shape(rows).size())}});
    rewriter_.replace_uses(y, columns);
    rewriter_.remove(product.turn);
  }

  void fuse(NodeId softmax) {
    const int64_t axis = int_attribute(node(softmax), "axis");
    const auto [weights, between, guarded] = weights_of(softmax);
    Product made = product_of(weights);
    if (made.id == kNone) return;
    const size_t rank = shape(weights).size();
    if (axis != -1 && axis != int64_t(rank) - 1) return;
    std::optional<Scores> scores = scores_of(node(softmax).input());
    if (!scores || (guarded && scores->mask != kNone)) return;
    if (guarded && rank > 4 && !scores->summands.empty()) return;  // rows without keys may take turns
    if (rank == 3 && !scores->summands.empty()) return;            // rules for biases count from an axis of heads
    std::vector<NodeId>& spent = scores->spent;
    spent.push_back(softmax);
    spent.insert(spent.end(), between.begin(), between.end());
    const Node& comparison = node(scores->comparison);
    const ValueId q = without_factors(comparison.input(BinaryInput::A), scores->scale, spent),
                  k = without_factors(comparison.input(BinaryInput::B), scores->scale, spent);
    const std::optional<int64_t> depth = engine_depth(shape(q), shape(k), made.shape);
    if (!depth) return;
    std::optional<Heads> keys = key_heads(k, *scores);
    // Turning columns does not pay for few keys, as those of attention between channels.
    const bool many = *depth == shape(q).back() && shape(k).back() >= *depth;
    if ((!keys || made.turn != kNone) && !many) return;
    if (shape(q)[0] == 1 && !(holds_samples(q) && holds_samples(k) && holds_samples(made.values))) return;
    if (!keys) keys = Heads{rows_of(scores->comparison, k), 1};
    scores->bias = bias_of(softmax, *scores, guarded);
    if (made.turn != kNone) turn_product(made, weights);
    const NodeId product = made.id;
    const ValueId v = made.values;

    const auto [last, head_axis] = result_of(product, q, spent);
    Operands operands{{heads(q), *keys, heads(v)}, {q, k, v}};
    std::set<NodeId> readers(spent.begin(), spent.end());
    readers.insert(last);
    if (scores->factor != kNone) {
      const std::string name = rewriter_.value(q).name + ".scaled";
      operands.heads[0] = {rewriter_.add_before(last, op::Mul, name, {q, scores->factor}), 1};
    }
    for (Heads& each : operands.heads) {
      const ValueId together = samples_together(last, each.value);
      if (together != each.value) readers.insert(rewriter_.value(together).producer);
      each.value = together;
    }
    const Shape extents = samples_together(shape(q));
    const Shape together = {extents[0]}, apart(shape(q).begin(), shape(q).end() - 3);
    ValueId packed = packed_operand(operands, extents, readers, together);
    if (packed == kNone && apart != together) packed = packed_operand(operands, extents, readers, apart);
    const ValueId turned = packed == kNone ? packed_operand(operands, extents, readers, together, true) : kNone;
    if (packed != kNone && shape(packed).size() > 3) {
      packed = rewriter_.add_before(last, op::Reshape, rewriter_.value(packed).name + ".together", {packed},
                                    {{"shape", Shape{-1, extents[2], shape(packed).back()}}});
    }
    for (const NodeId each : spent) rewriter_.remove(each);
    if (turned != kNone) {
      packed = rewriter_.add_before(last, op::Transpose, rewriter_.value(turned).name + ".samples_first", {turned},
                                    {{"perm", Axes{1, 0, 2}}});
    }
    packed != kNone ? replace_packed(last, packed, extents, head_axis, *depth, *scores)
                    : replace_apart(last, operands.heads, head_axis, *depth, *scores);
  }

  // With zeros after each row of the last axis, up to `length` elements.
  ValueId padded(NodeId before, ValueId value, int64_t length) {
    const Shape& whole = shape(value);
    if (whole.back() == length) return value;
    return rewriter_.add_before(before, op::Pad, rewriter_.value(value).name + ".padded", {value},
                                {{"axes", Axes{int64_t(whole.size()) - 1}}, {"pads", Axes{0, length - whole.back()}}});
  }

  // The bias of all summands and, if windows have a mask each, of that too: samples take it in turn then.
  ScoreBias bias_of(NodeId before, const Scores& scores, bool guarded) {
    const Shape made = shape(node(scores.comparison).output());
    ScoreBias bias = masks_.join(before, scores.summands, made, guarded);
    if (scores.mask != kNone) {
      const std::string name = rewriter_.value(node(scores.comparison).output()).name;
      const ValueId mask = rewriter_.add_before(before, op::Reshape, name + ".mask", {scores.mask},
                                                {{"shape", Shape{scores.windows, 1, made[2], made[3]}}});
      bias.bias = bias.bias == kNone ? mask : rewriter_.add_before(before, op::Add, name + ".bias", {mask, bias.bias});
      bias.causal = false;
    }
    for (ValueId* each : {&bias.bias, &bias.alive}) {
      if (*each != kNone && shape(*each).size() > 4) *each = samples_together(before, *each);
    }
    return bias;
  }

  // `extents` are Q's: samples, heads, rows and depth. `depth`: the engine's.
  void replace_packed(NodeId id, ValueId packed, const Shape& extents, int64_t head_axis, int64_t depth,
                      const Scores& scores) {
    if (depth != extents[3]) {
      const std::string name = rewriter_.value(packed).name;
      const ValueId rows = rewriter_.add_before(id, op::Reshape, name + ".heads", {packed},
                                                {{"shape", Shape{-1, extents[2], 3 * extents[1], extents[3]}}});
      packed = rewriter_.add_before(id, op::Reshape, name + ".padded", {padded(id, rows, depth)},
                                    {{"shape", Shape{-1, extents[2], 3 * extents[1] * depth}}});
    }
    replace(id, op::PackedAttention, {packed}, {{"heads", extents[1]}, {"head_axis", head_axis}}, depth, scores);
  }

  void replace_apart(NodeId id, const std::array<Heads, 3>& heads, int64_t head_axis, int64_t depth,
                     const Scores& scores) {
    std::vector<ValueId> inputs;
    Axes axes;
    std::map<ValueId, ValueId> operands;  // one tensor may be several
    for (const Heads& each : heads) {
      const auto [known, first] = operands.try_emplace(each.value, kNone);
      if (first) known->second = padded(id, each.value, depth);
      inputs.push_back(known->second);
      axes.push_back(each.axis);
    }
    axes.push_back(head_axis);
    replace(id, op::Attention, std::move(inputs), {{"head_axes", axes}}, depth, scores);
  }

  // `depth`: the operands'. What is more than the result's is sliced off.
  void replace(NodeId id, std::string_view op, std::vector<ValueId> inputs, Attributes attributes, int64_t depth,
               const Scores& scores) {
    const ValueId y = node(id).output();
    const std::string name = rewriter_.value(y).name, statistics = name + ".statistics";
    const auto [bias, alive, causal] = scores.bias;
    if (bias != kNone) inputs.push_back(bias);
    attributes.set("scale", scores.scale);
    if (causal) attributes.set("causal", int64_t{1});
    const Shape made = shape(y);
    if (made.size() == 4 && depth == made.back() && alive == kNone) {
      const ValueId sums = rewriter_.add_value(statistics, TensorType{});
      return rewriter_.become(id, op, std::move(inputs), {y, sums}, std::move(attributes));
    }
    const ValueId all = rewriter_.add_before(id, op, name + ".attention", std::move(inputs), std::move(attributes));
    rewriter_.add_output(rewriter_.value(all).producer, statistics);
    finish(id, all, alive);
  }

  // Makes the node's result of what attention made: without padding, 0 in rows without a key, and with all axes of
  // samples.
  void finish(NodeId id, ValueId all, ValueId alive) {
    struct Step {
      std::string_view op;
      std::vector<ValueId> inputs;  // kNone: what there is so far
      Attributes attributes = {};
    };
    const ValueId y = node(id).output();
    Shape made = shape(y);
    std::vector<Step> steps;
    if (shape(all).back() != made.back()) {
      steps.push_back({op::Slice, {kNone}, {{"starts", Axes{0}}, {"ends", Axes{made.back()}}, {"axes", Axes{3}}}});
    }
    if (alive != kNone) {
      const Node& attention = node(rewriter_.value(all).producer);
      const bool packed = attention.is(op::PackedAttention);
      const int64_t head_axis =
          packed ? int_attribute(attention, "head_axis") : ints_attribute(attention, "head_axes").back();
      steps.push_back({op::Where, {masks_.turned(id, alive, head_axis), kNone, masks_.number(0)}});
    }
    if (made.size() != 4) {
      made[0] = -1;
      steps.push_back({op::Reshape, {kNone}, {{"shape", std::move(made)}}});
    }
    for (Step& step : steps) {
      std::replace(step.inputs.begin(), step.inputs.end(), ValueId(kNone), all);
      if (&step == &steps.back()) return rewriter_.become(id, step.op, step.inputs, {y}, step.attributes);
      all = rewriter_.add_before(id, step.op, rewriter_.value(y).name + ".whole", step.inputs, step.attributes);
    }
  }

  const Graph& graph_;
  Rewriter rewriter_;
  AttentionMasks masks_;
  const bool lowered_;  // the program computes in bfloat16
};

}  // namespace

void fuse_attention(Graph& graph, bool lowered) {
  AttentionFusion(graph, lowered).run();
}

}  // namespace arbalest
