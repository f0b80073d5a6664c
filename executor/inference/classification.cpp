#include "executor/inference/classification.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "graph/op.h"

namespace arbalest {
namespace {

constexpr std::string_view kOfLabels = "arbalest.SigmoidCrossEntropy";

double fraction(int64_t part, int64_t whole) {
  return whole > 0 ? double(part) / double(whole) : std::numeric_limits<double>::quiet_NaN();
}

std::optional<ClassifiedValues> compared_by(const Graph& graph, std::string_view loss) {
  const Node* node = graph.find_op(loss);
  if (!node) return std::nullopt;
  const auto name = [&](size_t input) { return graph.values[size_t(node->inputs.at(input))].name; };
  ClassifiedValues values{name(0), name(1), std::nullopt};
  const bool ignores = node->op->attribute_spec("ignore_index") && !ints_attribute(*node, "ignore_index").empty();
  if (ignores) values.ignored = ints_attribute(*node, "ignore_index")[0];
  return values;
}

// Indices of the `count` greatest scores, in descending order; of equal ones the first.
std::vector<int64_t> greatest(std::span<const float> scores, size_t count) {
  std::vector<int64_t> order(scores.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto greater = [&](int64_t a, int64_t b) {
    const float first = scores[size_t(a)], second = scores[size_t(b)];
    return first > second || (first == second && a < b);
  };
  count = std::min(count, scores.size());
  std::partial_sort(order.begin(), order.begin() + int64_t(count), order.end(), greater);
  order.resize(count);
  return order;
}

}  // namespace

std::optional<ClassifiedValues> classified_values(const Graph& graph) {
  std::optional<ClassifiedValues> values = compared_by(graph, "arbalest.SoftmaxCrossEntropy");
  if (!values) return values;
  // Rows that classes were mixed to.
  const NodeId producer = graph.values[size_t(graph.find_value(values->label))].producer;
  if (producer == kNone || graph.nodes[size_t(producer)].op->qualified_name() != "arbalest.MixImages") return values;
  values->label = graph.values[size_t(graph.nodes[size_t(producer)].inputs.at(1))].name;
  return values;
}

std::optional<ClassifiedValues> labelled_values(const Graph& graph) {
  return compared_by(graph, kOfLabels);
}

std::string scores_of(const Graph& graph, const std::string& instead) {
  if (const auto classified = classified_values(graph)) return classified->logits;
  if (const auto labelled = labelled_values(graph)) return labelled->logits;
  throw GraphError("the graph has neither SoftmaxCrossEntropy nor SigmoidCrossEntropy, whose scores it would be; " +
                   instead);
}

bool scores_labels(const Graph& graph, ValueId value) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
    return node.op->qualified_name() == kOfLabels && node.inputs.at(0) == value;
  });
}

std::vector<Prediction> most_probable(std::span<const float> logits, size_t count) {
  const std::vector<int64_t> order = greatest(logits, count);
  if (order.empty()) return {};
  const double highest = logits[size_t(order[0])];
  double sum = 0;
  for (const float score : logits) sum += std::exp(double(score) - highest);
  std::vector<Prediction> predictions;
  for (const int64_t label : order) {
    predictions.push_back({label, std::exp(double(logits[size_t(label)]) - highest) / sum});
  }
  return predictions;
}

std::vector<Prediction> most_probable_labels(std::span<const float> logits, size_t count) {
  std::vector<Prediction> predictions;
  for (const int64_t label : greatest(logits, count)) {
    predictions.push_back({label, 1 / (1 + std::exp(-double(logits[size_t(label)])))});
  }
  return predictions;
}

int64_t ConfusionMatrix::samples() const {
  return std::accumulate(counts_.begin(), counts_.end(), int64_t{0});
}

int64_t ConfusionMatrix::samples(int64_t label) const {
  const auto first = counts_.begin() + label * classes_;
  return std::accumulate(first, first + classes_, int64_t{0});
}

int64_t ConfusionMatrix::predicted_as(int64_t label) const {
  int64_t sum = 0;
  for (int64_t of = 0; of < classes_; ++of) sum += count(of, label);
  return sum;
}

double ConfusionMatrix::accuracy() const {
  int64_t right = 0;
  for (int64_t label = 0; label < classes_; ++label) right += count(label, label);
  return fraction(right, samples());
}

double ConfusionMatrix::precision(int64_t label) const {
  return fraction(count(label, label), predicted_as(label));
}

double ConfusionMatrix::recall(int64_t label) const {
  return fraction(count(label, label), samples(label));
}

double ConfusionMatrix::f1(int64_t label) const {
  return fraction(2 * count(label, label), samples(label) + predicted_as(label));
}

double ConfusionMatrix::mean(double (ConfusionMatrix::*of)(int64_t) const) const {
  double sum = 0;
  int64_t defined = 0;
  for (int64_t label = 0; label < classes_; ++label) {
    const double value = (this->*of)(label);
    if (std::isnan(value)) continue;
    sum += value;
    ++defined;
  }
  return defined > 0 ? sum / double(defined) : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace arbalest
