// SPDX-License-Identifier: Apache-2.0
#include "executor/run/data_faults.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "graph/constants.h"
#include "graph/measures.h"
#include "graph/op.h"
#include "io/sources/field_values.h"
#include "ops/loss/operands.h"
#include "ops/names.h"

namespace arbalest {
namespace {

using Bytes = std::vector<std::byte>;

// The labels that an operator takes.
struct LabelRule {
  const Node* node = nullptr;
  ValueId label = kNone;
  int64_t classes = 0;                   // 0: a number from 0 to 1, or missing
  std::vector<int64_t> ignored;          // of classes
  std::map<int64_t, int64_t> seen = {};  // samples by label, of classes and of the number after the last
  int64_t looked_at = 0, known = 0;      // labels; those that are neither missing nor ignored
  int64_t between = 0;                   // those between 0 and 1

  void see(double value, DataType type) {
    if (classes > 0 && value >= 0 && value <= double(classes)) ++seen[int64_t(value)];
    ++looked_at;
    if (!counts_not(value, type)) ++known;
    if (classes == 0 && value > 0 && value < 1) ++between;
  }
  // Whether the label is missing, or ignored.
  bool counts_not(double value, DataType type) const {
    if (classes > 0) return !ignored.empty() && value == double(ignored[0]);
    return value == -1 || std::isnan(value) || (type == DataType::Uint8 && value == 255);
  }
  bool takes(double value, DataType type) const {
    if (counts_not(value, type)) return true;
    if (classes == 0) return value >= 0 && value <= 1;
    return value >= 0 && value < double(classes) && value == std::floor(value);
  }
  // A note about labels that are sound one by one; "": none.
  std::string note(const std::string& label, const Source& source) const {
    const std::string who = fmt::format("node '{}' ({})", node->name, node->op->qualified_name());
    if (looked_at > 0 && known == 0) {
      return fmt::format("all labels '{}' are {}, so that {} compares nothing", label,
                         classes > 0 ? fmt::format("{}, which is ignored", ignored[0]) : "missing", who);
    }
    const bool rows = node->op->metric && node->op->metric->keeps == MetricSpec::Keeps::Rows;
    if (rows && between > 0) {
      return fmt::format("{} takes labels 0 and 1, and {} of {} '{}' lie between, so that it is undefined", who,
                         between, looked_at, label);
    }
    return counted_from_one(seen, classes, source);
  }
  std::string expected() const {
    if (classes == 0) return "0 to 1, or -1 for one that is missing";
    const std::string range = fmt::format("0 to {}", classes - 1);
    if (!ignored.empty()) return fmt::format("{}, or {}, which is ignored", range, ignored[0]);
    const bool can_ignore = node->op->attribute_spec("ignore_index") != nullptr;
    return range + (can_ignore ? "; 'ignore_index' names a label whose samples take no part" : "");
  }
};

// The whole numbers that the value is a copy of: in a wider type, or with what does not fit as its nearest. So what is
// found is named as the field is, and counts once for all that read it.
ValueId stated_label(const Graph& graph, ValueId label) {
  for (;;) {
    const Value& value = graph.values[label];
    if (value.producer == kNone) return label;
    const Node& node = graph.nodes[value.producer];
    const bool nearest = node.is(op::CastToNearest);
    if (!nearest && !node.is(op::Cast)) return label;
    const auto is_whole = [](DataType type) {
      return type == DataType::Uint8 || type == DataType::Int32 || type == DataType::Int64;
    };
    const DataType from = graph.values[node.input()].type.dtype, to = value.type.dtype;
    if (!is_whole(from) || !is_whole(to) || (!nearest && size_of(from) > size_of(to))) return label;
    label = node.input();
  }
}

std::optional<LabelRule> rule_of(const Graph& graph, const Node& node) {
  using Target = Comparison::Target;
  const auto type = [&](size_t input) { return graph.values[node.inputs[input]].type; };
  if (node.is(op::MixLabels)) return LabelRule{&node, node.inputs[0], int_attribute(node, "classes"), {}};
  const std::optional<Comparison>& comparison = node.op->compares;
  if (!comparison || comparison->target == Target::Numbers) return std::nullopt;
  if (comparison->target == Target::Labels) return LabelRule{&node, node.inputs[LossInput::Target], 0, {}};
  const Shape scores = type(LossInput::X).shape, label = type(LossInput::Target).shape;
  const bool classes =
      scores.size() > 1 && scores.back() > 1 && (label.size() + 1 == scores.size() || label.back() == 1);
  const bool always = comparison->target == Target::Classes;
  if (always && is_floating(type(LossInput::Target).dtype)) return std::nullopt;  // a target for each class
  if (!classes && !always)
    return LabelRule{&node, node.inputs[LossInput::Target], 0, ints_attribute(node, "ignore_index")};
  return LabelRule{&node, stated_label(graph, node.inputs[LossInput::Target]), scores.back(),
                   ints_attribute(node, "ignore_index")};
}

// The nodes and the source's fields that a loop's labels are made of.
class Labels {
 public:
  Labels(const Loop& loop, size_t fields) : graph_(loop.graph) {
    for (const Node& node : loop.graph.nodes) {
      if (auto rule = rule_of(loop.graph, node)) rules_.push_back(*std::move(rule));
    }
    Table<ValueId, bool> needed(graph_.values.size(), false);
    for (const LabelRule& rule : rules_) needed[rule.label] = true;
    for (NodeId n = graph_.nodes.end_id(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      const bool makes =
          std::any_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return v != kNone && needed[v]; });
      if (!makes) continue;
      nodes_.insert(nodes_.begin(), n);
      for (const ValueId input : node.inputs) {
        if (input != kNone) needed[input] = true;
      }
    }
    for (size_t f = 0; f < fields; ++f) {
      const ValueId value = loop.fields[f];
      read_.push_back(value != kNone && needed[value] ? value : kNone);
      if (value != kNone && needed[value]) graph_.values[value].role = Role::Constant;
    }
  }

  bool reads(size_t field) const { return read_[field] != kNone; }
  // Whether the field is itself a label that may be missing.
  bool may_be_missing(size_t field) const {
    return std::any_of(rules_.begin(), rules_.end(), [&](const LabelRule& rule) {
      return rule.classes == 0 && rule.label == read_[field] && read_[field] != kNone;
    });
  }

  // Fields of a whole batch.
  void set(size_t field, const Bytes& batch) {
    graph_.values[read_[field]].initializer = {Initializer::Kind::Data, 0, std::make_shared<Bytes>(batch)};
  }
  void compute() {
    for (const NodeId node : nodes_) infer_content(graph_, node);
  }

  struct Fault {
    int64_t row = 0;
    std::string text;
  };
  // The first fault of the first `rows` of the batch; adds the number of faulty labels to `count`.
  std::optional<Fault> first_fault(int64_t rows, int64_t batch, int64_t& count) {
    std::optional<Fault> first;
    std::set<std::pair<ValueId, int64_t>> counted;  // a loss and a metric may look at one label
    for (LabelRule& rule : rules_) {
      const Value& label = graph_.values[rule.label];
      const auto content = content_of(graph_, rule.label);
      if (!content) continue;  // drawn at random, or not made of fields alone
      const std::vector<double> values = numbers(label.type.dtype, *content);
      const int64_t of_row = int64_t(values.size()) / batch;
      for (int64_t i = 0; i < rows * of_row; ++i) {
        rule.see(values[size_t(i)], label.type.dtype);
        if (rule.takes(values[size_t(i)], label.type.dtype)) continue;
        if (counted.emplace(rule.label, i).second) ++count;
        if (first && first->row <= i / of_row) continue;
        first = Fault{i / of_row, fmt::format("'{}' is {:g}{}; node '{}' ({}) takes {}", label.name, values[size_t(i)],
                                              of_row > 1 ? fmt::format(" at [{}]", i % of_row) : "", rule.node->name,
                                              rule.node->op->qualified_name(), rule.expected())};
      }
    }
    return first;
  }

  // Whether all labels have a known one, and those that have classes have a sample of class 0.
  bool begin_with_zero() const {
    return std::all_of(rules_.begin(), rules_.end(), [](const LabelRule& rule) {
      return rule.known > 0 && (rule.classes == 0 || rule.seen.contains(0));
    });
  }
  // The first note about labels that have been looked at.
  std::string note(const Source& source) const {
    for (const LabelRule& rule : rules_) {
      std::string note = rule.note(graph_.values[rule.label].name, source);
      if (!note.empty()) return note;
    }
    return "";
  }

 private:
  Graph graph_;
  std::vector<LabelRule> rules_;
  std::vector<NodeId> nodes_;  // in their order
  std::vector<ValueId> read_;  // by the source's field; kNone: no label is made of it
};

std::string place_of(const Source& source, const std::string& split, int64_t sample) {
  const std::string number = fmt::format("sample {}", sample), place = source.locate(sample);
  return fmt::format("{} of split '{}'{}", number, split, place == number ? "" : " (" + place + ")");
}

}  // namespace

DataFindings look_at_data(const Loop& loop, const Source& source, const std::string& split, LookFor what,
                          std::span<const int64_t> samples) {
  if (source.resident()) return {};
  const std::vector<Field> fields = source.fields();
  Labels labels(loop, fields.size());
  std::vector<int64_t> all(samples.begin(), samples.end());
  if (all.empty()) {
    all.resize(size_t(source.size()));
    std::iota(all.begin(), all.end(), int64_t{0});
  }
  const auto batch = size_t(loop.batch);
  std::vector<Bytes> content(fields.size());
  std::vector<bool> counts(fields.size(), false);  // fields whose numbers are looked at
  bool wanted = false;
  for (size_t f = 0; f < fields.size(); ++f) {
    counts[f] = what == LookFor::LabelsAndNumbers && loop.fields[f] != kNone && is_floating(fields[f].dtype) &&
                !labels.may_be_missing(f);
    // As a batch of the loop is filled: a source need not have been asked for fewer fields before.
    if (loop.fields[f] != kNone) content[f].resize(size_t(fields[f].sample().bytes()) * batch);
    wanted = wanted || labels.reads(f) || counts[f];
  }
  if (!wanted) return {};
  std::string first, first_number;
  int64_t bad_labels = 0;
  for (size_t begin = 0; begin < all.size(); begin += batch) {
    const size_t rows = std::min(batch, all.size() - begin);
    std::vector<SampleRef> of_batch(batch);
    for (size_t i = 0; i < batch; ++i) of_batch[i].index = all[begin + std::min(i, rows - 1)];
    std::vector<std::byte*> to;
    for (Bytes& bytes : content) to.push_back(bytes.empty() ? nullptr : bytes.data());
    source.fill(of_batch, to);
    for (size_t f = 0; f < fields.size(); ++f) {
      if (labels.reads(f)) labels.set(f, content[f]);
      for (size_t i = 0; counts[f] && first_number.empty() && i < rows; ++i) {
        const auto bytes = size_t(fields[f].sample().bytes());
        const std::string number = not_finite(fields[f], std::span(content[f]).subspan(i * bytes, bytes));
        if (number.empty()) continue;
        first_number =
            fmt::format("field '{}' of {} holds {}", fields[f].name, place_of(source, split, all[begin + i]), number);
      }
    }
    labels.compute();
    const auto fault = labels.first_fault(int64_t(rows), int64_t(batch), bad_labels);
    if (what == LookFor::Counting && labels.begin_with_zero()) return {};
    if (!fault || !first.empty()) continue;
    first = fmt::format("{}: {}", place_of(source, split, all[begin + size_t(fault->row)]), fault->text);
  }
  if (bad_labels > 1) first += fmt::format("; {} labels are like that", bad_labels);
  const std::string note = labels.note(source);
  if (bad_labels > 0) return {DataFault{true, note.empty() ? first : first + "; " + note}, note};
  if (first_number.empty()) return {std::nullopt, note};
  return {DataFault{false, first_number}, note};
}

std::optional<DataFault> fault_in_data(const Loop& loop, const Source& source, const std::string& split, LookFor what,
                                       std::span<const int64_t> samples) {
  return look_at_data(loop, source, split, what, samples).fault;
}

namespace {

// The first layer, or product with a parameter, that takes the value or what only changes its type or shape. Whole
// numbers are indices if a layer takes them as they are. kNone: there is none.
NodeId layer_that_takes(const Graph& graph, ValueId value) {
  static const std::set<std::string_view> pass_on = {op::AsStated, op::StopGradient, op::Cast,    op::Concat,
                                                     op::Flatten,  op::Identity,     op::Reshape, op::Transpose,
                                                     op::Squeeze,  op::Unsqueeze};
  std::set<ValueId> same = {value};
  for (const NodeId n : graph.nodes.ids()) {
    const Node& node = graph.nodes[n];
    const auto takes = [&](ValueId input) {
      return input != kNone && same.contains(input) && is_floating(graph.values[input].type.dtype);
    };
    const std::string op = node.op->qualified_name();
    if (pass_on.contains(op)) {
      if (std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) { return same.contains(input); })) {
        same.insert(node.outputs.begin(), node.outputs.end());
      }
      continue;
    }
    if (op.find("Norm") != op.npos || std::none_of(node.inputs.begin(), node.inputs.end(), takes)) continue;
    const bool product = std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) {
      return input != kNone && graph.values[input].role == Role::Parameter;
    });
    if (node.op->owns_values() || product) return n;
  }
  return kNone;
}

FieldRange range_of(const Source& source, size_t field) {
  constexpr int64_t kMostLooks = 256;  // samples, evenly spread
  const std::vector<Field> fields = source.fields();
  std::vector<Bytes> content(fields.size());
  std::vector<std::byte*> places(fields.size(), nullptr);
  for (size_t f = 0; f < fields.size(); ++f) {
    if (fields[f].dtype == DataType::String) continue;
    content[f].resize(size_t(fields[f].sample().bytes()));
    places[f] = content[f].data();
  }
  FieldRange range;
  for (int64_t i = 0, looks = std::min(kMostLooks, source.size()); i < looks; ++i) {
    const SampleRef sample{i * (source.size() / looks), 0, 0};
    source.fill({&sample, 1}, places);
    range.add(numbers(fields[field].dtype, content[field]));
  }
  return range;
}

}  // namespace

std::string unscaled_numbers(const Graph& graph, const Source& source, const std::string& split) {
  constexpr double kLargest = 50;  // of numbers that a layer learns from at usual rates
  if (source.resident()) return "";
  const Node& prefetch = *graph.find_op(op::Prefetch);
  const std::vector<Field> fields = source.fields();
  const std::vector<int> of_outputs = fields_of_outputs(graph, prefetch, fields);
  for (size_t o = 0; o < of_outputs.size(); ++o) {
    if (of_outputs[o] == kNone || fields[size_t(of_outputs[o])].dtype == DataType::String) continue;
    const NodeId layer = layer_that_takes(graph, prefetch.outputs[o]);
    if (layer == kNone) continue;
    const FieldRange range = range_of(source, size_t(of_outputs[o]));
    if (std::max(-range.least, range.most) <= kLargest) continue;
    const Node& node = graph.nodes[layer];
    return fmt::format(
        "field '{}' of split '{}' has numbers from {:g} to {:g}, and node '{}' ({}) takes them as they are; scale them "
        "to about -1 to 1 in the file, or by a Mul or Div before that node",
        fields[size_t(of_outputs[o])].name, split, range.least, range.most, node.name, node.op->qualified_name());
  }
  return "";
}

}  // namespace arbalest
