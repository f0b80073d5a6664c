// SPDX-License-Identifier: Apache-2.0
#include "graph/samples/open_batch.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "graph/constants.h"
#include "graph/names.h"
#include "graph/op.h"
#include "graph/samples/batch_changes.h"
#include "graph/samples/sample_probe.h"

namespace arbalest {
namespace {

constexpr int64_t kTimes = 2;  // as large as its own is the batch that the model is tried with

using Content = std::shared_ptr<const std::vector<std::byte>>;

std::optional<std::vector<int64_t>> known_list(const Graph& graph, const Node& node, size_t input) {
  const OperandSpec* spec = node.op->input_spec(input);
  const ValueId value = node.input(input);
  if (!spec || !spec->constant || value == kNone || !content_of(graph, value)) return std::nullopt;
  const TensorType& type = graph.values[value].type;
  if (type.shape.size() != 1 || is_floating(type.dtype)) return std::nullopt;
  return std::get<std::vector<int64_t>>(content_as(graph, node, input, AttributeKind::Ints));
}

// The content with the first of the equal parts that it has along an axis; null if they differ.
Content one_of(const TensorType& type, const std::vector<std::byte>& content, size_t axis) {
  const auto first = type.shape.begin();
  const int64_t outer = element_count({first, first + int64_t(axis)});
  const size_t part = content.size() / size_t(outer * type.shape[axis]);
  auto kept = std::make_shared<std::vector<std::byte>>();
  for (int64_t o = 0; o < outer; ++o) {
    const std::byte* const begin = content.data() + size_t(o * type.shape[axis]) * part;
    for (int64_t i = 1; i < type.shape[axis]; ++i) {
      if (std::memcmp(begin, begin + size_t(i) * part, part) != 0) return nullptr;
    }
    kept->insert(kept->end(), begin, begin + part);
  }
  return kept;
}

// The axis of `shape`, a value's in the model's own batch, that is to grow with it, if each sample has `stride`
// neighbouring elements of `samples` in row-major order. Several may do where the batch is one. Exporters merge samples
// with what stands before them, and rarely with an image's last axis: the first axis that has samples as its outermost
// part, but for the last axis, and otherwise the first that has them at all.
std::optional<size_t> batch_axis(const Shape& shape, int64_t stride, int64_t samples) {
  for (const bool outermost : {true, false}) {
    for (size_t axis = 0; axis < shape.size(); ++axis) {
      const int64_t inner = element_count({shape.begin() + int64_t(axis) + 1, shape.end()});
      const int64_t whole = inner * shape[axis] * kTimes;
      if (inner == 0 || stride % inner != 0) continue;
      if (outermost ? whole == stride * samples && (axis + 1 < shape.size() || axis == 0)
                    : whole % (stride * samples) == 0) {
        return axis;
      }
    }
  }
  return std::nullopt;
}

// Finds the changes by which a model takes a larger batch.
class Opening {
 public:
  Opening(const Graph& graph, int64_t batch)
      : graph_(graph),
        batch_(batch),
        samples_(batch * kTimes),
        own_(graph),
        open_(graph),
        changer_(open_, source_of(graph, batch)),
        probe_(open_, samples_) {}

  static ValueId source_of(const Graph& graph, int64_t batch) {
    const auto has = [&](ValueId v) {
      return !graph.values[v].type.shape.empty() && graph.values[v].type.shape[0] == batch;
    };
    const auto found = std::find_if(graph.inputs.begin(), graph.inputs.end(), has);
    return found == graph.inputs.end() ? kNone : *found;
  }

  // Whether changes are needed, and found. Throws GraphError for a node that fits no other batch.
  bool find() {
    for (const NodeId n : graph_.nodes.ids()) infer(own_, n);
    if (!needs_changes()) return false;
    open_ = own_;
    for (const NodeId n : graph_.nodes.ids()) {
      if (open_.nodes[n].op->for_inference) open_.nodes[n].op->for_inference(open_, n);
    }
    enlarge_inputs();
    for (const NodeId n : graph_.nodes.ids()) open(n);
    return true;
  }

  void apply(Graph& graph) const {
    for (const auto& [value, axis] : narrowed_) narrow(graph, value, axis);
    Table<NodeId, Node> stated = std::move(graph.nodes);
    graph.nodes = {};
    BatchChanger changer(graph, source_of(graph, batch_));
    for (const NodeId n : stated.ids()) {
      Node node = std::move(stated[n]);
      if (const auto changes = changes_.find(n); changes != changes_.end()) {
        for (const BatchChange& change : changes->second) changer.change(node, change);
      }
      for (const ValueId output : node.outputs) {
        if (output != kNone) graph.values[output].producer = graph.nodes.end_id();
      }
      graph.nodes.push_back(std::move(node));
    }
  }

 private:
  void enlarge_inputs() {
    for (const ValueId input : graph_.inputs) {
      Shape& shape = open_.values[input].type.shape;
      if (shape.empty() || shape[0] != batch_) continue;
      shape[0] = samples_;
      orders_.resize(open_.values.size());
      orders_[input] = {SampleOrder::Kind::Apart, open_.values[input].type.elements() / samples_, kNone};
    }
  }

  // A node that does not fit, or that keeps the first extent while its operand's grows.
  bool needs_changes() {
    enlarge_inputs();
    const auto first = [](const Graph& graph, ValueId v) {
      const Shape& shape = graph.values[v].type.shape;
      return shape.empty() ? -1 : shape[0];
    };
    for (const NodeId n : graph_.nodes.ids()) {
      if (!fits(n)) return true;
      const Node& node = graph_.nodes[n];
      if (node.inputs.empty() || node.input() == kNone || node.output() == kNone) continue;
      if (first(own_, node.input()) == first(open_, node.input())) continue;
      if (first(own_, node.output()) == first(open_, node.output())) return true;
    }
    return false;
  }

  bool fits(NodeId n) {
    try {
      infer(open_, n);
      return true;
    } catch (const GraphError&) {
      return false;
    }
  }

  bool depends(ValueId value) const {
    return value != kNone && size_t(value) < orders_.size() && orders_[value].kind != SampleOrder::Kind::None;
  }

  // Reduces a stored weight to the elements of one sample: a token that an exporter has expanded, which stands next to
  // samples, or the state before a recurrent layer's first step. Others may be alike by chance, as zeros are at first.
  bool narrow(NodeId n, size_t input, size_t axis) {
    const Node& node = graph_.nodes[n];
    const ValueId value = open_.nodes[n].inputs[input];
    const OperandSpec* spec = node.op->input_spec(input);
    if (!node.is("Concat") && !(spec && spec->part == OperandSpec::InitialState)) return false;
    size_t reads = size_t(std::count(graph_.outputs.begin(), graph_.outputs.end(), value));
    for (const Node& each : graph_.nodes) reads += size_t(std::count(each.inputs.begin(), each.inputs.end(), value));
    if (reads != 1 || !narrow(open_, value, axis)) return false;
    narrowed_.emplace_back(value, axis);
    return true;
  }

  static bool narrow(Graph& graph, ValueId value, size_t axis) {
    const Initializer stored = graph.values[value].initializer;  // of an activation it is a constant 0
    if (stored.kind != Initializer::Kind::Data || !stored.data || stored.data->empty()) return false;
    Content kept = one_of(graph.values[value].type, *stored.data, axis);
    if (!kept) return false;
    graph.values[value].initializer.data = std::move(kept);
    graph.values[value].type.shape[axis] = 1;
    return true;
  }

  // The operand's known content as that of one sample, if all along the axis have the same.
  std::optional<BatchChange> held(NodeId n, size_t i, size_t axis) const {
    const ValueId input = open_.nodes[n].inputs[i];
    TensorType type = open_.values[input].type;
    const Content content = content_of(open_, input);
    if (!content || content->empty() || type.shape.size() <= axis || type.shape[axis] != batch_) return std::nullopt;
    Content kept = one_of(type, *content, axis);
    if (!kept) return std::nullopt;
    type.shape[axis] = 1;
    return BatchChange{.kind = BatchChange::Kind::Holds, .input = i, .type = type, .content = std::move(kept)};
  }

  // Whole numbers, such as positions, that a node reads which is the same for all samples.
  void hold_one(NodeId n) {
    const Node node = open_.nodes[n];  // attempts may move nodes
    const bool known = node.output() == kNone || own_.values[node.output()].content;
    if (batch_ == 1 || known ||
        std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) { return depends(v); }))
      return;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId input = node.inputs[i];
      if (!node.op->element && !(node.is("Gather") && i == 1)) continue;  // rows have no meaning of their own
      if (input == kNone || is_floating(open_.values[input].type.dtype)) continue;
      if (open_.values[input].type.shape.size() < 2) continue;
      if (const std::optional<BatchChange> change = held(n, i, 0)) attempt(n, {*change});
    }
  }

  void open(NodeId n) {
    hold_one(n);
    if (open_.nodes[n].is("Gather")) name_shape(n);
    if (open_.nodes[n].op->reshapes) find_extent(n);
    if (open_.nodes[n].is(op::Expand) && !depends(open_.nodes[n].input())) expand_to_one(n);
    if (!fits(n)) {
      if (!read_batch(n) && !spread(n)) infer(open_, n);  // which says why
    } else if (keeps_extent(n) && !read_batch(n)) {
      infer(open_, n);  // the types that an attempt has left
    }
    orders_.resize(open_.values.size());
    const std::vector<SampleOrder> found = outputs(n);
    for (size_t i = 0; i < found.size(); ++i) {
      const ValueId output = open_.nodes[n].outputs[i];
      if (output != kNone) orders_[output] = found[i];
    }
  }

  // Rows stay rows, and what cannot be run, such as a recurrent layer, has samples along the axis that has grown; other
  // nodes are run.
  std::vector<SampleOrder> outputs(NodeId n) {
    const Node& node = open_.nodes[n];
    const auto are_rows = [&](ValueId input) {
      return !depends(input) || (orders_[input].kind == SampleOrder::Kind::Apart &&
                                 orders_[input].stride * samples_ == open_.values[input].type.elements());
    };
    std::vector<SampleOrder> found;
    if (node.op->cpu && !std::all_of(node.inputs.begin(), node.inputs.end(), are_rows)) {
      return probe_.outputs(n, orders_);
    }
    for (const ValueId output : node.outputs) {
      const SampleOrder order = output == kNone ? SampleOrder{} : along_grown_axis(n, output);
      if (order.kind == SampleOrder::Kind::Mixed) return probe_.outputs(n, orders_);
      found.push_back(order);
    }
    return found;
  }

  // Mixed: no axis has grown, or it is not the first of a node that can be run.
  SampleOrder along_grown_axis(NodeId n, ValueId output) const {
    const bool reads = std::any_of(open_.nodes[n].inputs.begin(), open_.nodes[n].inputs.end(),
                                   [&](ValueId input) { return depends(input); });
    if (!reads || open_.values[output].content) return {};
    const Shape &own = own_.values[output].type.shape, &open = open_.values[output].type.shape;
    const auto grown = std::mismatch(own.begin(), own.end(), open.begin(), open.end());
    const bool first = grown.first == own.begin();
    if (grown.first == own.end() || (open_.nodes[n].op->cpu && !first)) return {SampleOrder::Kind::Mixed, 0, n};
    const int64_t inner = element_count({grown.second, open.end()});
    return {SampleOrder::Kind::Apart, inner / samples_, kNone};
  }

  // Applies a change on trial; the node is as before if it does not fit then.
  bool attempt(NodeId n, const std::vector<BatchChange>& changes) {
    const Node before = open_.nodes[n];
    const size_t nodes = open_.nodes.size();
    Node after = before;
    for (const BatchChange& change : changes) changer_.change(after, change);
    open_.nodes[n] = after;
    orders_.resize(open_.values.size());
    for (NodeId added = NodeId(int64_t(nodes)); added < open_.nodes.end_id(); ++added) infer(open_, added);
    if (fits(n) && !keeps_extent(n)) {
      std::vector<BatchChange>& kept = changes_[n];
      kept.insert(kept.end(), changes.begin(), changes.end());
      return true;
    }
    open_.nodes[n] = before;
    return false;
  }

  // A Reshape whose shape is a list: the extent that samples lie along is found by what is left.
  void find_extent(NodeId n) {
    const Node& node = open_.nodes[n];
    const ValueId data = node.input(), reshaped = node.output();
    if (!depends(data) || orders_[data].kind != SampleOrder::Kind::Apart) return;
    const std::optional<size_t> input = constant_operand(node, "shape");
    if (!input || node.input(*input) == kNone || !known_list(open_, node, *input)) return;
    Shape shape = own_.values[reshaped].type.shape;
    const std::optional<size_t> axis = batch_axis(shape, orders_[data].stride, samples_);
    if (!axis) return;
    Shape wanted = shape;
    wanted[*axis] *= kTimes;
    if (fits(n) && open_.values[reshaped].type.shape == wanted) return;
    shape[*axis] = -1;
    attempt(n, {{.kind = BatchChange::Kind::States, .input = *input, .list = {shape.begin(), shape.end()}}});
  }

  // An Expand of something that is the same for all samples leaves one element along the first axis.
  void expand_to_one(NodeId n) {
    const Node& node = open_.nodes[n];
    const std::optional<size_t> input = constant_operand(node, "shape");
    if (batch_ == 1 || !input || node.input(*input) == kNone || own_.values[node.output()].content) return;
    std::optional<std::vector<int64_t>> list = known_list(open_, node, *input);
    const bool stated = list == known_list(own_, graph_.nodes[n], *input);  // and not made of the inputs' shapes
    if (!list || list->empty() || list->front() != batch_ || !stated) return;
    const Shape& shape = open_.values[node.input()].type.shape;
    if (shape.size() == list->size() && shape[0] != 1) return;
    list->front() = 1;
    attempt(n, {{.kind = BatchChange::Kind::States, .input = *input, .list = *list}});
  }

  // A Gather of all elements in their order, by which PyTorch's exporter writes `as_strided`, is a Reshape.
  void name_shape(NodeId n) {
    const Node& node = graph_.nodes[n];
    const ValueId data = node.input();
    if (!depends(data) || orders_[data].kind != SampleOrder::Kind::Apart || int_attribute(node, "axis") != 0) return;
    const auto content = content_of(own_, node.inputs[1]);
    const TensorType& indices = own_.values[node.inputs[1]].type;
    const Shape& from = own_.values[data].type.shape;
    if (!content || indices.dtype != DataType::Int64 || from.size() != 1 || indices.elements() != from[0]) return;
    std::vector<int64_t> places(static_cast<size_t>(from[0]));
    std::memcpy(places.data(), content->data(), content->size());
    for (size_t i = 0; i < places.size(); ++i) {
      if (places[i] != int64_t(i)) return;
    }
    std::vector<int64_t> shape = indices.shape;
    const std::optional<size_t> axis = batch_axis(shape, orders_[data].stride, samples_);
    if (!axis) return;
    shape[*axis] = -1;
    attempt(n, {{.kind = BatchChange::Kind::Names, .list = std::move(shape)}});
  }

  // Whether the output has the first extent that it has in the model's own batch, though its operand has more samples.
  bool keeps_extent(NodeId n) const {
    const Node& node = graph_.nodes[n];
    const auto shape = [&](const Graph& graph, ValueId value) { return graph.values[value].type.shape; };
    const ValueId data = node.input(), output = node.output();
    if (node.op->reshapes || output == kNone || !depends(data)) return false;
    if (shape(own_, data).empty() || shape(own_, output).empty()) return false;
    return shape(own_, data)[0] != shape(open_, data)[0] && shape(own_, output) == shape(open_, output);
  }

  // An extent becomes a multiple of the batch, in a list that states the output's shape, or 1 where the operand's
  // extent counts.
  bool read_batch(NodeId n) {
    if (graph_.nodes[n].output() == kNone) return false;
    const Shape own = own_.values[graph_.nodes[n].output()].type.shape;
    const size_t inputs = open_.nodes[n].inputs.size();
    for (size_t i = 0; i < inputs; ++i) {
      const auto list = known_list(open_, open_.nodes[n], i);
      const auto states = [](int64_t stated, int64_t extent) { return stated == extent || stated == 1; };
      if (!list || !std::equal(list->begin(), list->end(), own.begin(), own.end(), states)) continue;
      for (size_t place = 0; place < list->size(); ++place) {
        if ((*list)[place] % batch_ != 0) continue;
        if (attempt(n, {{BatchChange::Kind::Reads, i, *list, place, (*list)[place] / batch_}})) return true;
      }
    }
    return false;
  }

  // Operands that are the same for all samples: those with the same elements for each of them have those of one, and
  // then they are spread.
  bool spread(NodeId n) {
    for (const size_t axis : {size_t{0}, size_t{1}}) {
      std::vector<BatchChange> holds, spreads;
      const size_t narrowed = narrowed_.size();
      for (size_t i = 0; i < open_.nodes[n].inputs.size(); ++i) {
        const ValueId input = open_.nodes[n].inputs[i];
        if (input == kNone || depends(input) || open_.values[input].type.shape.size() < 2) continue;
        const size_t rank = open_.values[input].type.shape.size();
        bool one = open_.values[input].type.shape[axis] == 1;
        if (!one && batch_ > 1 && open_.values[input].type.shape[axis] == batch_) {
          const std::optional<BatchChange> change = held(n, i, axis);
          if (change) holds.push_back(*change);
          one = change || narrow(n, i, axis);
        }
        if (one) spreads.push_back({BatchChange::Kind::Spreads, i, std::vector<int64_t>(rank, 1), axis});
      }
      if (!spreads.empty() && attempt(n, holds)) return true;
      holds.insert(holds.end(), spreads.begin(), spreads.end());
      if (!spreads.empty() && attempt(n, holds)) return true;
      for (; narrowed_.size() > narrowed; narrowed_.pop_back()) {
        const ValueId value = narrowed_.back().first;
        open_.values[value].type = graph_.values[value].type;
        open_.values[value].initializer = graph_.values[value].initializer;
      }
    }
    return false;
  }

  const Graph& graph_;
  const int64_t batch_, samples_;
  Graph own_, open_;  // with the types of the model's own batch, and of the larger one
  BatchChanger changer_;
  SampleProbe probe_;
  Table<ValueId, SampleOrder> orders_;
  std::map<NodeId, std::vector<BatchChange>> changes_;
  std::vector<std::pair<ValueId, size_t>> narrowed_;
};

}  // namespace

void open_batch(Graph& graph, int64_t batch) {
  if (batch < 1 || Opening::source_of(graph, batch) == kNone) return;
  for (const ValueId input : graph.inputs) {  // types cannot be inferred with other extents that are open
    const Shape& shape = graph.values[input].type.shape;
    if (std::any_of(shape.begin(), shape.end(), [](int64_t extent) { return extent < 0; })) return;
  }
  Opening opening(graph, batch);
  try {
    if (!opening.find()) return;
  } catch (const std::exception&) {
    return;
  }
  opening.apply(graph);
}

}  // namespace arbalest
