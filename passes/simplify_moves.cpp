// SPDX-License-Identifier: Apache-2.0

// Operators that move elements, where a simpler one does or none is needed: what exporters write for any shape, once
// the shapes are known.

#include <algorithm>
#include <limits>
#include <optional>

#include "graph/constants.h"
#include "ops/indexing/gather.h"
#include "ops/indexing/index_box.h"
#include "ops/shape/copy.h"
#include "ops/shape/cut.h"
#include "ops/shape/transpose.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

using Ints = std::vector<int64_t>;

bool all_are(const Ints& numbers, int64_t number) {
  return std::all_of(numbers.begin(), numbers.end(), [&](int64_t each) { return each == number; });
}

// Whether the transposition keeps the order of all axes but those of one element.
bool keeps_order(const Node& node, const Shape& from) {
  int64_t last = -1;
  for (const int64_t axis : permutation_of(node, from.size())) {
    if (from[size_t(axis)] == 1) continue;
    if (axis < last) return false;
    last = axis;
  }
  return true;
}

// Whether the node, whose input 0 and output 0 have the same type, gives its input back.
bool gives_back(const Node& node, const Shape& shape) {
  if (node.is(op::Identity) || node.op->reshapes) return true;
  if (node.is(op::Expand) || node.is(op::Tile)) return true;
  if (node.is(op::Concat)) return node.inputs.size() == 1;
  if (node.is(op::Split)) return node.outputs.size() == 1;
  if (node.is(op::Pad)) return all_are(ints_attribute(node, "pads"), 0);
  if (node.is(op::Transpose)) return keeps_order(node, shape);
  if (!node.is(op::Slice)) return false;
  const Cut cut(node, shape);
  return all_are(cut.first, 0) && all_are(cut.step, 1);
}

// Indices that are equally far from each other.
struct Run {
  int64_t first, step, count;
};

std::optional<Run> run_of(Ints indices, int64_t extent) {
  for (int64_t& index : indices) {
    if (index < -extent || index >= extent) return std::nullopt;
    if (index < 0) index += extent;
  }
  if (indices.empty()) return std::nullopt;
  const int64_t step = indices.size() == 1 ? 1 : indices[1] - indices[0];
  for (size_t i = 1; i < indices.size(); ++i) {
    if (indices[i] - indices[i - 1] != step) return std::nullopt;
  }
  if (step == 0) return std::nullopt;
  return Run{indices[0], step, int64_t(indices.size())};
}

class MoveSimplification {
 public:
  MoveSimplification(Graph& graph, const std::vector<ValueId>& asked) : graph_(graph), rewriter_(graph, asked) {}

  void run() {
    for (const NodeId n : rewriter_.ids()) {
      if (rewriter_.is(n, op::GatherND)) cut_box(n);
      if (rewriter_.is(n, op::ScatterND)) replace_box(n);
    }
    for (NodeId n = rewriter_.ids().last; n-- > 0;) drop_unread(n);
    for (const NodeId n : rewriter_.ids()) {
      if (rewriter_.node(n).inputs.empty()) continue;
      if (rewriter_.is(n, op::Gather)) slice(n);
      if (rewriter_.is(n, op::Transpose)) reshape(n);
      if (rewriter_.is(n, op::Expand)) broadcast_in_readers(n);
      if (rewriter_.is(n, op::Pad)) pad_in_reader(n);
      pass_by(n);
    }
    rewriter_.finish();
  }

 private:
  const TensorType& type(ValueId value) const { return rewriter_.value(value).type; }

  // Fusions leave nodes behind that nothing reads, and that would count as readers here. Those that read a parameter
  // stay: an error says why the parameter is not trained.
  void drop_unread(NodeId id) {
    const Node& node = rewriter_.node(id);
    const bool unread = std::all_of(node.outputs.begin(), node.outputs.end(), [&](ValueId output) {
      return output == kNone || rewriter_.readers(output).empty();
    });
    const bool parameter = std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) {
      return input != kNone && rewriter_.value(input).role == Role::Parameter;
    });
    if (unread && !parameter && !node.op->side_effect) rewriter_.remove(id);
  }

  // GatherND of a box is a Slice.
  void cut_box(NodeId id) {
    const Node& node = rewriter_.node(id);
    if (int_attribute(node, "batch_dims") != 0) return;
    const ValueId x = node.input(), y = node.output();
    const auto box = box_of(graph_, node.input(IndexedInput::Indices), rewriter_.shape(x));
    if (!box) return;
    Ints ends = box->first;
    for (size_t axis = 0; axis < ends.size(); ++axis) ends[axis] += box->count[axis];
    rewriter_.become(id, op::Slice, {x}, {y}, {{"starts", box->first}, {"ends", ends}});
  }

  // ScatterND into a box is the updates with what lies around them, axis by axis from the last one on.
  void replace_box(NodeId id) {
    const Node& node = rewriter_.node(id);
    if (string_attribute(node, "reduction") != "none") return;
    const ValueId x = node.input(), y = node.output();
    const Shape shape = rewriter_.shape(x);
    const auto box = box_of(graph_, node.input(IndexedInput::Indices), shape);
    if (!box) return;
    ValueId inside = node.input(IndexedInput::Updates);
    size_t first_partial = 0;
    while (first_partial < shape.size() && box->whole(shape, first_partial)) ++first_partial;
    if (first_partial == shape.size()) {
      // A parameter that nothing else reads would influence nothing any more.
      const bool spare = rewriter_.readers(x).size() > 1 || rewriter_.value(x).role == Role::Constant;
      if (spare) rewriter_.become(id, op::Identity, {inside}, {y}, {});
      return;
    }
    const std::string name = rewriter_.value(y).name;
    for (size_t axis = shape.size(); axis-- > first_partial;) {
      if (box->whole(shape, axis)) continue;
      const auto around = [&](int64_t begin, int64_t end) {  // along this axis, within the box along those before it
        Ints starts(box->first.begin(), box->first.begin() + int64_t(axis)), ends = starts, axes;
        for (size_t i = 0; i < axis; ++i) ends[i] += box->count[i];
        starts.push_back(begin);
        ends.push_back(end);
        for (size_t i = 0; i <= axis; ++i) axes.push_back(int64_t(i));
        return rewriter_.add_before(id, op::Slice, name + ".around", {x},
                                    {{"starts", starts}, {"ends", ends}, {"axes", axes}});
      };
      const int64_t begin = box->first[axis], end = begin + box->count[axis];
      std::vector<ValueId> parts;
      if (begin > 0) parts.push_back(around(0, begin));
      parts.push_back(inside);
      if (end < shape[axis]) parts.push_back(around(end, shape[axis]));
      if (axis == first_partial) return rewriter_.become(id, op::Concat, parts, {y}, {{"axis", int64_t(axis)}});
      inside = rewriter_.add_before(id, op::Concat, name + ".inside", parts, {{"axis", int64_t(axis)}});
    }
  }

  // Gather of a constant index, or of several that are equally far from each other.
  void slice(NodeId id) {
    const Node& node = rewriter_.node(id);
    const ValueId x = node.input(), indices = node.input(IndexedInput::Indices), y = node.output();
    const Shape &shape = rewriter_.shape(x), &taken = rewriter_.shape(indices);
    if (taken.size() > 1 || content_of(graph_, indices) == nullptr) return;
    if (!ints_attribute(node, "padding_index").empty()) return;  // a Slice has no index without a gradient
    const auto axis = int64_t(axis_of(node, shape.size())), extent = shape[size_t(axis)];
    const auto run =
        run_of(std::get<Ints>(content_as(graph_, node, IndexedInput::Indices, AttributeKind::Ints)), extent);
    if (!run) return;
    int64_t end = run->first + run->step * run->count;
    if (end < 0) end = std::numeric_limits<int64_t>::min();
    const Attributes part = {
        {"starts", Ints{run->first}}, {"ends", Ints{end}}, {"axes", Ints{axis}}, {"steps", Ints{run->step}}};
    if (!taken.empty()) return rewriter_.become(id, op::Slice, {x}, {y}, part);
    const ValueId one =
        extent == 1 ? x : rewriter_.add_before(id, op::Slice, rewriter_.value(y).name + ".slice", {x}, part);
    rewriter_.become(id, op::Squeeze, {one}, {y}, {{"axes", Ints{axis}}});
  }

  void reshape(NodeId id) {
    const Node& node = rewriter_.node(id);
    const TensorType &x = type(node.input()), &y = type(node.output());
    if (x.shape == y.shape || !keeps_order(node, x.shape)) return;
    if (!x.lies_as(Layout::RowMajor) || y.layout != Layout::RowMajor) return;
    rewriter_.become(id, op::Reshape, {node.input()}, {node.output()}, {{"shape", y.shape}, {"allowzero", int64_t{1}}});
  }

  // Operators that work element by element broadcast what they read by themselves.
  void broadcast_in_readers(NodeId id) {
    const ValueId x = rewriter_.input(id), y = rewriter_.output(id);
    const std::vector<NodeId> readers = rewriter_.readers(y);
    for (const NodeId reader : readers) {
      if (reader != kNone && rewriter_.node(reader).op->element) read_instead(reader, y, x);
    }
    rewriter_.remove_unread(id, y);
  }

  // A convolution puts zeros around its images by itself, as long as they are fewer than its windows cover.
  void pad_in_reader(NodeId id) {
    const Node& node = rewriter_.node(id);
    const NodeId reader = rewriter_.only_reader(node.output());
    const bool convolves = rewriter_.is(reader, op::Conv) || rewriter_.is(reader, op::ConvRelu);
    if (!convolves || rewriter_.input(reader, ConvInput::X) != node.output() || node.inputs.size() > 1) return;
    if (string_attribute(node, "mode") != "constant" || float_attribute(node, "constant_value") != 0 ||
        float_attribute(node, "value") != 0) {
      return;
    }
    const std::string auto_pad = string_attribute(rewriter_.node(reader), "auto_pad");
    if (auto_pad != "NOTSET" && auto_pad != "VALID") return;  // what others pad depends on the image's extents
    const size_t rank = rewriter_.shape(node.input()).size(), spatial = rank - 2;
    Ints pads = auto_pad == "VALID" ? Ints() : ints_attribute(rewriter_.node(reader), "pads");
    Ints dilations = ints_attribute(rewriter_.node(reader), "dilations");
    pads.resize(2 * spatial, 0);
    dilations.resize(spatial, 1);
    const Ints around = ints_attribute(node, "pads"), axes = ints_attribute(node, "axes");
    for (size_t i = 0; i < around.size(); ++i) {
      const size_t entry = i % (around.size() / 2), side = i / (around.size() / 2);
      const size_t axis = axes.empty() ? entry : normalized_axis(axes[entry], rank);
      if (around[i] < 0 || (around[i] > 0 && axis < 2)) return;
      if (around[i] == 0) continue;
      const size_t at = axis - 2;
      const int64_t kernel = rewriter_.shape(rewriter_.input(reader, ConvInput::W))[axis];
      pads[side * spatial + at] += around[i];
      if (pads[side * spatial + at] > (kernel - 1) * dilations[at]) return;
    }
    const ValueId x = node.input();
    rewriter_.remove(id);
    rewriter_.attributes(reader).set("pads", pads);
    rewriter_.attributes(reader).set("auto_pad", "NOTSET");
    rewriter_.set_input(reader, ConvInput::X, x);
    rewriter_.infer(reader);
  }

  // Lets the node read `to` for `from`, if what it makes has the same type then.
  void read_instead(NodeId id, ValueId from, ValueId to) {
    const std::vector<ValueId> before = rewriter_.node(id).inputs;
    const ValueId made = rewriter_.output(id);
    const TensorType type_before = type(made);
    std::vector<ValueId> inputs = before;
    std::replace(inputs.begin(), inputs.end(), from, to);
    rewriter_.set_inputs(id, std::move(inputs));
    rewriter_.infer(id);
    if (type(made) == type_before) return;
    rewriter_.set_inputs(id, before);
    rewriter_.infer(id);
  }

  // Lets the readers of a node that gives its input back read that input.
  void pass_by(NodeId id) {
    const Node& node = rewriter_.node(id);
    if (node.input() == kNone || node.output() == kNone) return;
    const ValueId x = node.input(), y = node.output();
    if (type(x) != type(y) || !gives_back(node, rewriter_.shape(x))) return;
    rewriter_.replace_reads(y, x);
    if (!rewriter_.remove_unread(id, y) && !rewriter_.is(id, op::Identity))
      rewriter_.become(id, op::Identity, {x}, {y}, {});
  }

  const Graph& graph_;
  Rewriter rewriter_;
};

}  // namespace

void simplify_moves(Graph& graph, const std::vector<ValueId>& asked) {
  MoveSimplification(graph, asked).run();
}

}  // namespace arbalest
