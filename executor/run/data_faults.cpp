#include "executor/run/data_faults.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <set>

#include "graph/constants.h"
#include "graph/measures.h"
#include "graph/op.h"

namespace arbalest {
namespace {

using Bytes = std::vector<std::byte>;

// The labels that an operator takes.
struct LabelRule {
  const Node* node = nullptr;
  ValueId label = kNone;
  int64_t classes = 0;           // 0: a number from 0 to 1, or missing
  std::vector<int64_t> ignored;  // of classes

  bool takes(double value, DataType type) const {
    if (classes == 0) {
      const bool missing = value == -1 || std::isnan(value) || (type == DataType::Uint8 && value == 255);
      return missing || (value >= 0 && value <= 1);
    }
    const bool whole = value >= -9e18 && value <= 9e18 && value == std::floor(value);
    if (!whole) return false;
    const bool passed_over = !ignored.empty() && int64_t(value) == ignored[0];
    return passed_over || (value >= 0 && value < double(classes));
  }
  std::string expected() const {
    if (classes == 0) return "0 to 1, or -1 for one that is missing";
    const std::string range = fmt::format("0 to {}", classes - 1);
    if (!ignored.empty()) return fmt::format("{}, or {}, which is ignored", range, ignored[0]);
    const bool can_ignore = node->op->attribute_spec("ignore_index") != nullptr;
    return range + (can_ignore ? "; 'ignore_index' names a label whose samples take no part" : "");
  }
};

std::optional<LabelRule> rule_of(const Graph& graph, const Node& node) {
  using Target = Comparison::Target;
  const auto type = [&](size_t input) { return graph.values[size_t(node.inputs[input])].type; };
  const std::string op = node.op->qualified_name();
  if (op == "arbalest.MixLabels") {
    return LabelRule{&node, node.inputs[0], int_attribute(node, "classes"), {}};
  }
  const Comparison* comparison = comparison_of(*node.op);
  if (!comparison || comparison->target == Target::Numbers) return std::nullopt;
  if (comparison->target == Target::Labels) return LabelRule{&node, node.inputs[1], 0, {}};
  const Shape scores = type(0).shape, label = type(1).shape;
  const bool classes = scores.size() == 2 && scores[1] > 1 && (label.size() == 1 || label[1] == 1);
  const bool always = comparison->target == Target::Classes;
  if (always && is_floating(type(1).dtype)) return std::nullopt;  // a target for each class
  return LabelRule{&node, node.inputs[1], classes || always ? scores.at(1) : 0, ints_attribute(node, "ignore_index")};
}

template <typename T>
void widen(const Bytes& bytes, std::vector<double>& values) {
  values.resize(bytes.size() / sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) {
    T element;
    std::memcpy(&element, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = double(element);
  }
}

std::vector<double> numbers(DataType type, const Bytes& bytes) {
  std::vector<double> values;
  switch (type) {
    case DataType::Float32: widen<float>(bytes, values); break;
    case DataType::Float64: widen<double>(bytes, values); break;
    case DataType::Int32: widen<int32_t>(bytes, values); break;
    case DataType::Int64: widen<int64_t>(bytes, values); break;
    case DataType::Uint8: widen<uint8_t>(bytes, values); break;
    default: break;
  }
  return values;
}

// The nodes and the source's fields that a loop's labels are made of.
class Labels {
 public:
  Labels(const Loop& loop, size_t fields) : graph_(loop.graph) {
    for (const Node& node : loop.graph.nodes) {
      if (auto rule = rule_of(loop.graph, node)) rules_.push_back(*std::move(rule));
    }
    std::vector<bool> needed(graph_.values.size(), false);
    for (const LabelRule& rule : rules_) needed[size_t(rule.label)] = true;
    for (size_t n = graph_.nodes.size(); n-- > 0;) {
      const Node& node = graph_.nodes[n];
      const bool makes = std::any_of(node.outputs.begin(), node.outputs.end(),
                                     [&](ValueId v) { return v != kNone && needed[size_t(v)]; });
      if (!makes) continue;
      nodes_.insert(nodes_.begin(), NodeId(n));
      for (const ValueId input : node.inputs) {
        if (input != kNone) needed[size_t(input)] = true;
      }
    }
    for (size_t f = 0; f < fields; ++f) {
      const ValueId value = loop.fields[f];
      read_.push_back(value != kNone && needed[size_t(value)] ? value : kNone);
      if (value != kNone && needed[size_t(value)]) graph_.values[size_t(value)].role = Role::Constant;
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
    graph_.values[size_t(read_[field])].initializer = {Initializer::Kind::Data, 0, std::make_shared<Bytes>(batch)};
  }
  void compute() {
    for (const NodeId node : nodes_) infer_content(graph_, node);
  }

  struct Fault {
    int64_t row = 0;
    std::string text;
  };
  // The first fault of the first `rows` of the batch; adds the number of faulty labels to `count`.
  std::optional<Fault> first_fault(int64_t rows, int64_t batch, int64_t& count) const {
    std::optional<Fault> first;
    std::set<std::pair<ValueId, int64_t>> counted;  // a loss and a metric may look at one label
    for (const LabelRule& rule : rules_) {
      const Value& label = graph_.values[size_t(rule.label)];
      const auto content = content_of(graph_, rule.label);
      if (!content) continue;  // drawn at random, or not made of fields alone
      const std::vector<double> values = numbers(label.type.dtype, *content);
      const int64_t of_row = int64_t(values.size()) / batch;
      for (int64_t i = 0; i < rows * of_row; ++i) {
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

 private:
  Graph graph_;
  std::vector<LabelRule> rules_;
  std::vector<NodeId> nodes_;  // in their order
  std::vector<ValueId> read_;  // by the source's field; kNone: no label is made of it
};

// The first of a sample's numbers that is not finite: "nan at [3]"; "": all are.
std::string not_finite(const Field& field, const Bytes& batch, int64_t row) {
  const auto bytes = size_t(field.sample().bytes());
  const auto* from = batch.data() + size_t(row) * bytes;
  const std::vector<double> values = numbers(field.dtype, Bytes(from, from + bytes));
  const auto bad = std::find_if(values.begin(), values.end(), [](double value) { return !std::isfinite(value); });
  if (bad == values.end()) return "";
  const std::string kind = std::isnan(*bad) ? "nan" : "an infinity";
  return values.size() == 1 ? kind : fmt::format("{} at element {} of {}", kind, bad - values.begin(), values.size());
}

std::string place_of(const Source& source, const std::string& split, int64_t sample) {
  const std::string number = fmt::format("sample {}", sample), place = source.locate(sample);
  return fmt::format("{} of split '{}'{}", number, split, place == number ? "" : " (" + place + ")");
}

}  // namespace

std::optional<DataFault> fault_in_data(const Loop& loop, const Source& source, const std::string& split, LookFor what,
                                       std::span<const int64_t> samples) {
  if (source.resident()) return std::nullopt;
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
  if (!wanted) return std::nullopt;
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
        const std::string number = not_finite(fields[f], content[f], int64_t(i));
        if (number.empty()) continue;
        first_number =
            fmt::format("field '{}' of {} holds {}", fields[f].name, place_of(source, split, all[begin + i]), number);
      }
    }
    labels.compute();
    const auto fault = labels.first_fault(int64_t(rows), int64_t(batch), bad_labels);
    if (!fault || !first.empty()) continue;
    first = fmt::format("{}: {}", place_of(source, split, all[begin + size_t(fault->row)]), fault->text);
  }
  if (bad_labels > 1) first += fmt::format("; {} labels are like that", bad_labels);
  if (bad_labels > 0) return DataFault{true, first};
  return first_number.empty() ? std::nullopt : std::optional(DataFault{false, first_number});
}

}  // namespace arbalest
