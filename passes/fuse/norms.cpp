// SPDX-License-Identifier: Apache-2.0

// Norms of rows that exporters spell out, c / √(mean(c²) + ε), in which c is x or x − mean(x). The order in which they
// take the root, its reciprocal and the product does not matter. Powers by constants are products and roots already.
// Norms of groups are spelled as norms of the channels of another shape.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/constants.h"
#include "ops/norm/group_norm.h"
#include "ops/norm/layer_norm.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

// A mean over the last axes, which stay with one element.
struct RowMean {
  ValueId of = kNone;
  size_t first = 0;  // of those axes
};

class NormFusion {
 public:
  explicit NormFusion(Graph& graph) : graph_(graph), rewriter_(graph) {}

  void run() {
    for (const NodeId n : rewriter_.ids()) {
      const NodeId norm = rewriter_.is(n, op::Sqrt) ? fuse(n) : n;
      if (rewriter_.is(norm, kNormalizeGroups) || rewriter_.is(norm, op::Normalize)) make_groups(norm);
    }
    rewriter_.finish();
    for (NodeId n = 0; changed_ && n < graph_.nodes.end_id(); ++n) infer(graph_, n);  // layouts
  }

 private:
  const Node& node(NodeId id) const { return rewriter_.node(id); }
  const Shape& shape(ValueId value) const { return rewriter_.shape(value); }

  // Such a mean that makes the value.
  std::optional<RowMean> mean(ValueId value) const {
    NodeId id = rewriter_.producer(value, op::ReduceMean);
    const NodeId shaped = id == kNone ? rewriter_.producer(value, op::Reshape) : kNone;
    if (shaped != kNone) id = rewriter_.producer(rewriter_.input(shaped), op::ReduceMean);
    if (id == kNone || flag_attribute(node(id), "keepdims") != (shaped == kNone)) return std::nullopt;
    const std::optional<std::vector<int64_t>> known = rewriter_.reduced_axes(id);
    if (!known) return std::nullopt;
    const std::vector<int64_t>& axes = *known;
    const ValueId x = rewriter_.input(id);
    const size_t rank = shape(x).size();
    for (size_t i = 0; i < axes.size(); ++i) {
      if (axes[i] != int64_t(rank - axes.size() + i)) return std::nullopt;
    }
    if (axes.empty() || axes.size() == rank) return std::nullopt;
    Shape kept = shape(x);
    std::fill(kept.end() - std::ptrdiff_t(axes.size()), kept.end(), 1);
    if (shape(value) != kept) return std::nullopt;
    return RowMean{x, rank - axes.size()};
  }

  // The other operand of a node of this operator that has a number as one.
  std::pair<ValueId, double> with_number(NodeId id, std::string_view op) const {
    if (!rewriter_.is(id, op) || node(id).inputs.size() != 2) return {kNone, 0};
    for (const auto& [other, number] : both_orders(node(id))) {
      const std::optional<double> known = number_of(graph_, number);
      if (known && shape(rewriter_.output(id)) == shape(other)) return {other, *known};
    }
    return {kNone, 0};
  }

  // The value that this one is, before nodes that change neither its shape nor its elements.
  ValueId unmoved(ValueId value) const {
    while (true) {
      const NodeId producer = rewriter_.value(value).producer;
      const bool moves = rewriter_.is(producer, op::Reshape) || rewriter_.is(producer, op::Expand);
      if (!moves || shape(rewriter_.input(producer)) != shape(value)) return value;
      value = rewriter_.input(producer);
    }
  }

  // The tensor whose mean has been taken off; none if the value is no such difference.
  std::optional<RowMean> difference(ValueId value) const {
    const NodeId id = rewriter_.producer(value, op::Sub);
    if (id == kNone) return std::nullopt;
    const std::optional<RowMean> own = mean(node(id).input(BinaryInput::B));
    const bool centred = own && own->of == node(id).input(BinaryInput::A) && shape(own->of) == shape(value);
    return centred ? own : std::nullopt;
  }

  // The quotient of c and the root, whose reader is the node: Div of c by it, or Mul of c and its reciprocal.
  // `is_c`: torch.var has a mean and a difference of its own.
  template <typename Predicate>
  NodeId quotient(NodeId reader, ValueId root, Predicate is_c) const {
    if (rewriter_.is(reader, op::Div) && is_c(node(reader).input(BinaryInput::A))) return reader;
    const bool inverse = rewriter_.is(reader, op::Reciprocal) ||
                         (rewriter_.is(reader, op::Div) && node(reader).input(BinaryInput::B) == root &&
                          number_of(graph_, node(reader).input(BinaryInput::A)) == 1.0);
    if (!inverse || shape(rewriter_.output(reader)) != shape(root)) return kNone;
    const ValueId reciprocal = rewriter_.output(reader);
    const NodeId product = rewriter_.only_reader(reciprocal, op::Mul);
    if (product == kNone) return kNone;
    for (const auto& [a, b] : both_orders(node(product))) {
      if (is_c(a) && b == reciprocal) return product;
    }
    return kNone;
  }

  // The norm that the root has become a part of; kNone: it is part of none.
  NodeId fuse(NodeId root) {
    const ValueId deviation = rewriter_.output(root);
    const NodeId sum = rewriter_.value(rewriter_.input(root)).producer;
    const auto [variance, epsilon] = with_number(sum, op::Add);
    if (variance == kNone || !(epsilon >= 0)) return kNone;
    const std::optional<RowMean> squares = mean(unmoved(variance));
    if (!squares) return kNone;
    const NodeId square = rewriter_.producer(squares->of, op::Mul);
    if (square == kNone || node(square).input(BinaryInput::A) != node(square).input(BinaryInput::B)) return kNone;
    const ValueId c = node(square).input();
    std::optional<RowMean> centre = difference(c);
    if (centre && centre->first != squares->first) centre.reset();
    const NodeId last = quotient(rewriter_.only_reader(deviation), deviation, [&](ValueId value) {
      if (value == deviation) return false;
      const std::optional<RowMean> other = value == c ? centre : difference(value);
      return value == c || (centre && other && other->of == centre->of && other->first == centre->first);
    });
    if (last == kNone || shape(rewriter_.output(last)) != shape(c)) return kNone;
    return make(last, centre ? centre->of : c, squares->first, epsilon, centre.has_value());
  }

  // The norm takes the place of `last`, and of nodes after it that scale by one row and shift by another.
  NodeId make(NodeId last, ValueId x, size_t first, double epsilon, bool centred) {
    const TensorType row{master_type(rewriter_.value(x).type.dtype),
                         {shape(x).begin() + std::ptrdiff_t(first), shape(x).end()}};
    std::vector<ValueId> inputs = {x};
    const std::vector<ValueId> spent = node(last).inputs;
    const auto take = [&](std::string_view op) {
      const ValueId y = rewriter_.output(last);
      const NodeId reader = rewriter_.only_reader(y, op);
      if (reader == kNone || shape(rewriter_.output(reader)) != shape(x)) return false;
      for (const auto& [a, b] : both_orders(node(reader))) {
        if (a != y || rewriter_.value(b).type != row) continue;
        inputs.push_back(b);
        rewriter_.remove(std::exchange(last, reader));
        return true;
      }
      return false;
    };
    if (take(op::Mul) && centred) take(op::Add);
    const bool scaled = inputs.size() > 1;
    rewriter_.become(last,
                     !centred ? op::RMSNormalization
                     : scaled ? op::LayerNormalization
                              : op::Normalize,
                     std::move(inputs), {rewriter_.output(last)}, {{"axis", int64_t(first)}, {"epsilon", epsilon}});
    for (const ValueId value : spent) drop(value);
    changed_ = true;
    return last;
  }

  // A norm of pixels, or of images whose groups of channels were made channels and whose shape comes back after it,
  // becomes one of groups, which takes images as they lie.
  void make_groups(NodeId norm) {
    const bool rows = rewriter_.is(norm, op::Normalize);
    const Shape grouped = shape(rewriter_.input(norm));
    if (rows && (int_attribute(node(norm), "axis") != 2 || grouped[1] < 2)) return;
    if (!rows && grouped[1] != int_attribute(node(norm), "groups")) return;
    const NodeId before = rewriter_.producer(rewriter_.input(norm), op::Reshape);
    const NodeId after = rewriter_.only_reader(rewriter_.output(norm), op::Reshape);
    const ValueId image = before != kNone ? rewriter_.input(before) : kNone;
    const bool found = image != kNone && after != kNone && is_image_of(image, grouped) &&
                       shape(rewriter_.output(after)) == shape(image);
    if (!found && !(rows && grouped.size() > 3)) return;
    const Attributes attributes = {{"groups", grouped[1]}, {"epsilon", float_attribute(node(norm), "epsilon")}};
    const ValueId y = rewriter_.output(found ? after : norm);
    std::vector<ValueId> outputs = {y};
    for (const size_t i : {NormalizeGroupsOutput::Mean, NormalizeGroupsOutput::InvStd}) {
      if (!rows) outputs.push_back(rewriter_.output(norm, i));
    }
    if (found) rewriter_.remove(after);
    rewriter_.become(norm, kNormalizeGroups, {found ? image : rewriter_.input(norm)}, outputs, attributes);
    for (const char* name : {".mean", ".inv_std"}) {
      if (rows) rewriter_.add_output(norm, rewriter_.value(y).name + name);
    }
    if (found) rewriter_.remove_unread(before, rewriter_.output(before));
    changed_ = true;
  }
  // Whether the value is (N, C, …) and the other shape its elements as (N, groups, …).
  bool is_image_of(ValueId value, const Shape& grouped) const {
    const Shape& image = shape(value);
    return image.size() > 2 && image[0] == grouped[0] && image[1] % grouped[1] == 0;
  }

  // Removes what made a value that nothing reads any more.
  void drop(ValueId value) {
    const NodeId producer = rewriter_.value(value).producer;
    if (producer == kNone || node(producer).outputs.size() > 1) return;
    const std::vector<ValueId> inputs = node(producer).inputs;
    if (!rewriter_.remove_unread(producer, value)) return;
    for (const ValueId input : inputs) {
      if (input != kNone) drop(input);
    }
  }

  Graph& graph_;
  Rewriter rewriter_;
  bool changed_ = false;
};

}  // namespace

void fuse_norms(Graph& graph) {
  NormFusion(graph).run();
}

}  // namespace arbalest
