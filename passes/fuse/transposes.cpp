// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <optional>
#include <string>

#include "graph/layouts.h"
#include "ops/product/gemm.h"
#include "ops/shape/transpose.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

using Axes = std::vector<int64_t>;

bool begins_with(const Shape& shape, const Shape& first) {
  return shape.size() >= first.size() && std::equal(first.begin(), first.end(), shape.begin());
}

// A transposition of the first axes only, and the nodes after it that treat each row, along the axes that are left,
// alike, up to another transposition.
struct Chain {
  Axes moved;                // the transposition of the first axes
  Shape before, after;       // their extents
  std::vector<NodeId> rows;  // the nodes between
  NodeId last = kNone;       // the other transposition
};

class TransposeFusion {
 public:
  TransposeFusion(Graph& graph, const std::vector<ValueId>& asked) : rewriter_(graph, asked) {}

  void run() {
    for (const NodeId n : rewriter_.ids()) {
      if (rewriter_.is(n, op::Transpose) && !node(n).inputs.empty()) join(n);
    }
    for (const NodeId n : rewriter_.ids()) {
      turn_for_image(n);
      while (absorb(n, GemmInput::A) || absorb(n, GemmInput::B)) {
      }
    }
    rewriter_.finish();
  }

 private:
  const Node& node(NodeId id) const { return rewriter_.node(id); }
  const Shape& shape(ValueId value) const { return rewriter_.shape(value); }

  // The node that alone reads the value, as a square does twice; kNone: there is none.
  NodeId single_reader(ValueId value) const {
    const std::vector<NodeId>& readers = rewriter_.readers(value);
    return !readers.empty() && std::count(readers.begin(), readers.end(), readers[0]) == std::ssize(readers)
               ? readers[0]
               : kNone;
  }

  bool row_major(NodeId transpose) const {
    return rewriter_.value(node(transpose).input()).type.layout == Layout::RowMajor &&
           rewriter_.value(node(transpose).output()).type.layout == Layout::RowMajor;
  }

  // Lets a product whose result (N,C,L) becomes a channels-last image make that as it lies: (N,L,C).
  void turn_for_image(NodeId id) {
    using In = BinaryInput;
    const bool plain = rewriter_.is(id, op::MatMul);
    if (!plain && !rewriter_.is(id, op::BatchMatMul)) return;
    const ValueId a = rewriter_.input(id, In::A), b = rewriter_.input(id, In::B), y = node(id).output();
    const NodeId apart = rewriter_.only_reader(y);
    const NodeId turn =
        apart != kNone && rewriter_.reshapes(apart) ? rewriter_.only_reader(node(apart).output()) : kNone;
    if (turn == kNone || !rewriter_.is(turn, op::ChangeLayout) || shape(a).size() != 3 || shape(b).size() != 3) return;
    const TensorType image = rewriter_.value(node(turn).output()).type;
    if (image.layout != Layout::ChannelsLast || !merges_pixels(image.shape, shape(y)) || shape(a)[0] != shape(b)[0])
      return;
    const auto flag = [&](const char* name) { return !plain && int_attribute(node(id), name) != 0; };
    const bool trans_a = flag("transA"), trans_b = flag("transB");
    rewriter_.set_op(id, op::BatchMatMul);
    rewriter_.set_inputs(id, {b, a});
    rewriter_.attributes(id).set("transA", int64_t{!trans_b});
    rewriter_.attributes(id).set("transB", int64_t{!trans_a});
    rewriter_.infer(id);
    rewriter_.become(apart, op::Reshape, {y}, {node(apart).output()},
                     {{"shape", with_channels_last(image.shape)}, {"allowzero", int64_t{1}}});
    rewriter_.become(turn, op::TransposeInPlace, {node(apart).output()}, {node(turn).output()},
                     {{"perm", channels_from_last(image.shape.size())}});
  }

  // Rows of pixels (N,L,C) of the channels-last image whose pixels `merged` (N,C,L) has as columns. They lie as the
  // image does. kNone: it is made of no such image.
  ValueId rows_of_image(NodeId before, ValueId merged) {
    const NodeId merge = rewriter_.value(merged).producer;
    const NodeId turn =
        merge != kNone && rewriter_.reshapes(merge) ? rewriter_.producer(node(merge).input(), op::ChangeLayout) : kNone;
    if (turn == kNone) return kNone;
    const ValueId image = node(turn).input();
    const Shape whole = shape(image);
    if (rewriter_.value(image).type.layout != Layout::ChannelsLast || !merges_pixels(whole, shape(merged)))
      return kNone;
    const std::string name = rewriter_.value(merged).name;
    const ValueId pixels = rewriter_.add_before(before, op::TransposeInPlace, name + ".pixels", {image},
                                                {{"perm", channels_to_last(whole.size())}});
    return rewriter_.add_before(before, op::Reshape, name + ".rows", {pixels},
                                {{"shape", Shape{whole[0], shape(merged)[2], whole[1]}}, {"allowzero", int64_t{1}}});
  }

  // The matrices that `value` has transposed, if they lie in memory as well; otherwise kNone.
  ValueId untransposed(NodeId before, ValueId value) {
    const NodeId transpose = rewriter_.producer(value, op::Transpose);
    if (transpose == kNone) return rows_of_image(before, value);
    const size_t rank = shape(value).size();
    return row_major(transpose) && permutation_of(node(transpose), rank) == rows_as_columns(rank)
               ? node(transpose).input()
               : kNone;
  }

  // Removes the node that makes the value, a Transpose or what reads an image row-major, and those before it that do
  // so, as far as nothing reads what they make.
  void remove_moves(ValueId value) {
    for (NodeId id = rewriter_.value(value).producer; id != kNone;) {
      const bool moves =
          rewriter_.is(id, op::Transpose) || rewriter_.is(id, op::ChangeLayout) || rewriter_.reshapes(id);
      const ValueId before = moves ? node(id).input() : kNone;
      if (!moves || !rewriter_.remove_unread(id, node(id).output())) return;
      id = rewriter_.value(before).producer;
    }
  }

  // Lets a product read an operand whose matrices were transposed as it was before.
  bool absorb(NodeId id, size_t operand) {
    const bool matrices = rewriter_.is(id, op::MatMul), batches = rewriter_.is(id, op::BatchMatMul);
    if (!matrices && !batches && !rewriter_.is(id, op::Gemm)) return false;
    const ValueId read = rewriter_.input(id, operand);
    const size_t rank = shape(read).size();
    if (rank < 2) return false;
    // Matrices that meet one B are one product, and so is the gradient of B, but not if each is transposed.
    if (operand == GemmInput::A && rank > 2 && shape(rewriter_.input(id, GemmInput::B)).size() <= 2) return false;
    const ValueId x = untransposed(id, read);
    if (x == kNone) return false;
    const char* flag = operand == GemmInput::A ? "transA" : "transB";
    const bool already = !matrices && int_attribute(node(id), flag) != 0;
    if (matrices) rewriter_.set_op(id, op::BatchMatMul);
    rewriter_.set_input(id, operand, x);
    rewriter_.attributes(id).set(flag, int64_t{!already});
    remove_moves(read);
    return true;
  }

  // Whether what is added to, or multiplied with, the rows is the same for all of them.
  bool is_for_all_rows(ValueId other, size_t rank, size_t axes) const {
    const Shape& extents = shape(other);
    for (size_t i = 0; i < extents.size() && rank - extents.size() + i < axes; ++i) {
      if (extents[i] != 1) return false;
    }
    return extents.size() <= rank;
  }

  // Whether the node computes each row of `value` by itself, with `axes` axes of rows.
  bool keeps_rows(NodeId id, ValueId value, size_t axes) const {
    const Node& found = node(id);
    const size_t rank = shape(value).size();
    if (found.is(op::Identity)) return true;
    if (found.op->element && !found.op->attribute_spec("shape")) {  // gradients of reductions state theirs
      return shape(found.output()) == shape(value) &&
             std::all_of(found.inputs.begin(), found.inputs.end(), [&](ValueId input) {
               return input == value || input == kNone || is_for_all_rows(input, rank, axes);
             });
    }
    if (found.input(GemmInput::A) != value || rank <= axes) return false;
    const bool gemm = found.is(op::Gemm), plain = found.is(op::MatMul);
    if (!gemm && !plain && !found.is(op::BatchMatMul)) return false;
    if (shape(found.input(GemmInput::B)).size() != 2 || (!plain && int_attribute(found, "transA") != 0)) return false;
    return !gemm || found.input(GemmInput::C) == kNone || is_for_all_rows(found.input(GemmInput::C), rank, axes);
  }

  // The chain from a transposition to the next one; none if there is no such chain.
  std::optional<Chain> chain_from(NodeId first) const {
    if (!row_major(first)) return std::nullopt;
    const ValueId x = node(first).input();
    Axes axes = permutation_of(node(first), shape(x).size());
    while (!axes.empty() && axes.back() == int64_t(axes.size()) - 1) axes.pop_back();
    if (axes.empty()) return std::nullopt;
    Chain chain{axes, Shape(shape(x).begin(), shape(x).begin() + int64_t(axes.size())), {}, {}};
    for (const int64_t axis : axes) chain.after.push_back(chain.before[size_t(axis)]);
    const int64_t count = element_count(chain.after);
    bool flat = false;  // the rows' axes are one
    ValueId value = node(first).output();
    for (;;) {
      const NodeId id = single_reader(value);
      if (id == kNone) return std::nullopt;
      if (rewriter_.is(id, op::Transpose)) {
        chain.last = id;
        return flat || !row_major(id) ? std::nullopt : std::optional(chain);
      }
      if (rewriter_.reshapes(id)) {
        const Shape& made = shape(node(id).output());
        const bool together = begins_with(made, {count});
        if (!together && !begins_with(made, chain.after)) return std::nullopt;
        flat = together && !begins_with(made, chain.after);
      } else if (!keeps_rows(id, value, flat ? 1 : axes.size())) {
        return std::nullopt;
      }
      chain.rows.push_back(id);
      value = node(id).output();
    }
  }

  // Two transpositions become one, or none, if each row comes to the second as the first would have left it.
  void join(NodeId first) {
    const std::optional<Chain> chain = chain_from(first);
    if (!chain) return;
    const ValueId x = node(first).input(), y = node(first).output();
    const NodeId reader = single_reader(y);
    std::vector<ValueId> inputs = node(reader).inputs;
    std::replace(inputs.begin(), inputs.end(), y, x);
    rewriter_.set_inputs(reader, std::move(inputs));
    rewriter_.remove(first);
    for (const NodeId id : chain->rows) {
      if (rewriter_.reshapes(id)) put_rows_back(id, *chain);
      rewriter_.infer(id);
    }
    Axes axes = permutation_of(node(chain->last), shape(node(chain->last).input()).size());
    for (int64_t& axis : axes) {
      if (axis < int64_t(chain->moved.size())) axis = chain->moved[size_t(axis)];
    }
    const ValueId rows = node(chain->last).input(), result = node(chain->last).output();
    if (axes.size() >= 4 && keeps_memory(axes, Layout::RowMajor, Layout::ChannelsLast)) {
      // Elements stay where they are, as an image; what reads the result takes it row by row.
      const ValueId image = rewriter_.add_before(chain->last, op::TransposeInPlace,
                                                 rewriter_.value(result).name + ".image", {rows}, {{"perm", axes}});
      const std::string row_major(name_of(Layout::RowMajor));
      rewriter_.become(chain->last, op::ChangeLayout, {image}, {result}, {{"to", row_major}});
      return;
    }
    if (!std::is_sorted(axes.begin(), axes.end())) {
      rewriter_.attributes(chain->last).set("perm", axes);
      rewriter_.infer(chain->last);
      return;
    }
    rewriter_.replace_reads(result, rows);
    if (rewriter_.remove_unread(chain->last, result)) return;
    rewriter_.become(chain->last, op::Identity, {rows}, {result}, {});
  }

  void put_rows_back(NodeId id, const Chain& chain) {
    Shape made = shape(node(id).output());
    if (begins_with(made, chain.after)) std::copy(chain.before.begin(), chain.before.end(), made.begin());
    rewriter_.become(id, op::Reshape, {node(id).input()}, {node(id).output()},
                     {{"shape", made}, {"allowzero", int64_t{1}}});
  }

  Rewriter rewriter_;
};

}  // namespace

void fuse_transposes(Graph& graph, const std::vector<ValueId>& asked) {
  TransposeFusion(graph, asked).run();
}

}  // namespace arbalest
