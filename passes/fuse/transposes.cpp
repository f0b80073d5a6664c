// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <optional>
#include <string>

#include "graph/layouts.h"
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
      if (rewriter_.is(n, "Transpose") && !node(n).inputs.empty()) join(n);
    }
    for (const NodeId n : rewriter_.ids()) {
      while (absorb(n, 0) || absorb(n, 1)) {
      }
    }
    rewriter_.finish();
  }

 private:
  const Node& node(NodeId id) const { return rewriter_.node(id); }
  const Shape& shape(ValueId value) const { return rewriter_.shape(value); }

  bool row_major(NodeId transpose) const {
    return rewriter_.value(node(transpose).inputs[0]).type.layout == Layout::RowMajor &&
           rewriter_.value(node(transpose).outputs[0]).type.layout == Layout::RowMajor;
  }

  // Lets a product read an operand whose matrices were transposed as it was before.
  bool absorb(NodeId id, size_t operand) {
    const bool matrices = rewriter_.is(id, "MatMul"), batches = rewriter_.is(id, "arbalest.BatchMatMul");
    if (!matrices && !batches && !rewriter_.is(id, "Gemm")) return false;
    const NodeId transpose = rewriter_.producer(rewriter_.input(id, operand), "Transpose");
    if (transpose == kNone || !row_major(transpose)) return false;
    const ValueId x = node(transpose).inputs[0];
    const size_t rank = shape(x).size();
    if (rank < 2) return false;
    // Matrices that meet one B are one product, and so is the gradient of B, but not if each is transposed.
    if (operand == 0 && rank > 2 && shape(node(id).inputs[1]).size() <= 2) return false;
    Axes axes(rank);
    std::iota(axes.begin(), axes.end(), int64_t{0});
    std::swap(axes[rank - 1], axes[rank - 2]);
    if (permutation_of(node(transpose), rank) != axes) return false;
    const char* flag = operand == 0 ? "transA" : "transB";
    const bool already = !matrices && int_attribute(node(id), flag) != 0;
    if (matrices) rewriter_.set_op(id, "arbalest.BatchMatMul");
    rewriter_.set_input(id, operand, x);
    rewriter_.attributes(id).set(flag, int64_t{!already});
    rewriter_.remove_unread(transpose, node(transpose).outputs[0]);
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
    const std::string name = found.op->qualified_name();
    const size_t rank = shape(value).size();
    if (name == "Identity") return true;
    if (found.op->element && !found.op->attribute_spec("shape")) {  // gradients of reductions state theirs
      return shape(found.outputs[0]) == shape(value) &&
             std::all_of(found.inputs.begin(), found.inputs.end(), [&](ValueId input) {
               return input == value || input == kNone || is_for_all_rows(input, rank, axes);
             });
    }
    if (found.inputs[0] != value || rank <= axes) return false;
    const bool gemm = name == "Gemm";
    if (!gemm && name != "MatMul" && name != "arbalest.BatchMatMul") return false;
    if (shape(found.inputs[1]).size() != 2 || (name != "MatMul" && int_attribute(found, "transA") != 0)) return false;
    return !gemm || rewriter_.input(id, 2) == kNone || is_for_all_rows(rewriter_.input(id, 2), rank, axes);
  }

  // The chain from a transposition to the next one; none if there is no such chain.
  std::optional<Chain> chain_from(NodeId first) const {
    if (!row_major(first)) return std::nullopt;
    const ValueId x = node(first).inputs[0];
    Axes axes = permutation_of(node(first), shape(x).size());
    while (!axes.empty() && axes.back() == int64_t(axes.size()) - 1) axes.pop_back();
    if (axes.empty()) return std::nullopt;
    Chain chain{axes, Shape(shape(x).begin(), shape(x).begin() + int64_t(axes.size())), {}, {}};
    for (const int64_t axis : axes) chain.after.push_back(chain.before[size_t(axis)]);
    const int64_t count = element_count(chain.after);
    bool flat = false;  // the rows' axes are one
    ValueId value = node(first).outputs[0];
    for (;;) {
      const NodeId id = rewriter_.only_reader(value);
      if (id == kNone) return std::nullopt;
      if (rewriter_.is(id, "Transpose")) {
        chain.last = id;
        return flat || !row_major(id) ? std::nullopt : std::optional(chain);
      }
      if (rewriter_.reshapes(id)) {
        const Shape& made = shape(node(id).outputs[0]);
        const bool together = begins_with(made, {count});
        if (!together && !begins_with(made, chain.after)) return std::nullopt;
        flat = together && !begins_with(made, chain.after);
      } else if (!keeps_rows(id, value, flat ? 1 : axes.size())) {
        return std::nullopt;
      }
      chain.rows.push_back(id);
      value = node(id).outputs[0];
    }
  }

  // Two transpositions become one, or none, if each row comes to the second as the first would have left it.
  void join(NodeId first) {
    const std::optional<Chain> chain = chain_from(first);
    if (!chain) return;
    const ValueId x = node(first).inputs[0], y = node(first).outputs[0];
    const NodeId reader = rewriter_.only_reader(y);
    std::vector<ValueId> inputs = node(reader).inputs;
    std::replace(inputs.begin(), inputs.end(), y, x);
    rewriter_.set_inputs(reader, std::move(inputs));
    rewriter_.remove(first);
    for (const NodeId id : chain->rows) {
      if (rewriter_.reshapes(id)) put_rows_back(id, *chain);
      rewriter_.infer(id);
    }
    Axes axes = permutation_of(node(chain->last), shape(node(chain->last).inputs[0]).size());
    for (int64_t& axis : axes) {
      if (axis < int64_t(chain->moved.size())) axis = chain->moved[size_t(axis)];
    }
    const ValueId rows = node(chain->last).inputs[0], result = node(chain->last).outputs[0];
    if (axes.size() >= 4 && keeps_memory(axes, Layout::RowMajor, Layout::ChannelsLast)) {
      // Elements stay where they are, as an image; what reads the result takes it row by row.
      const ValueId image = rewriter_.add_before(chain->last, "arbalest.TransposeInPlace",
                                                 rewriter_.value(result).name + ".image", {rows}, {{"perm", axes}});
      const std::string row_major(name_of(Layout::RowMajor));
      rewriter_.become(chain->last, "arbalest.ChangeLayout", {image}, {result}, {{"to", row_major}});
      return;
    }
    if (!std::is_sorted(axes.begin(), axes.end())) {
      rewriter_.attributes(chain->last).set("perm", axes);
      rewriter_.infer(chain->last);
      return;
    }
    rewriter_.replace_reads(result, rows);
    if (rewriter_.remove_unread(chain->last, result)) return;
    rewriter_.become(chain->last, "Identity", {rows}, {result}, {});
  }

  void put_rows_back(NodeId id, const Chain& chain) {
    Shape made = shape(node(id).outputs[0]);
    if (begins_with(made, chain.after)) std::copy(chain.before.begin(), chain.before.end(), made.begin());
    rewriter_.become(id, "Reshape", {node(id).inputs[0]}, {node(id).outputs[0]},
                     {{"shape", made}, {"allowzero", int64_t{1}}});
  }

  Rewriter rewriter_;
};

}  // namespace

void fuse_transposes(Graph& graph, const std::vector<ValueId>& asked) {
  TransposeFusion(graph, asked).run();
}

}  // namespace arbalest
