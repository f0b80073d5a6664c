// SPDX-License-Identifier: Apache-2.0
#include "executor/inference/classification.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "graph/measures.h"
#include "graph/op.h"
#include "ops/data/mixing.h"
#include "ops/loss/operands.h"
#include "ops/names.h"

namespace arbalest {
namespace {

double fraction(int64_t part, int64_t whole) {
  return whole > 0 ? double(part) / double(whole) : std::numeric_limits<double>::quiet_NaN();
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

// The name of the value that Identity hands on as `name`, however often.
std::string source_of(const Graph& graph, const std::string& name) {
  ValueId value = graph.find_value(name);
  while (value != kNone && graph.values[value].producer != kNone) {
    const Node& producer = graph.nodes[graph.values[value].producer];
    if (!producer.is(op::Identity)) break;
    value = producer.inputs[0];
  }
  return value == kNone ? name : graph.values[value].name;
}

}  // namespace

std::vector<Head> heads_of(const Graph& graph) {
  std::vector<Head> heads;
  for (const bool labels : {false, true}) {
    for (const Node& node : graph.nodes) {
      if (!(labels ? is_loss_of_labels(*node.op) : is_loss_of_classes(*node.op))) continue;
      ValueId label = node.inputs.at(LossInput::Target);
      const NodeId producer = graph.values[label].producer;
      if (!labels && producer != kNone && graph.nodes[producer].is(op::MixImages)) {
        label = graph.nodes[producer].inputs.at(MixImagesInput::Label);  // rows that classes were mixed to
      }
      const auto name = [&](ValueId value) { return graph.values[value].name; };
      Head head = {name(node.inputs.at(0)), name(label), labels, std::nullopt};
      if (!labels && node.op->attribute_spec("axis")) head.axis = int_attribute(node, "axis");
      const bool ignores = node.op->attribute_spec("ignore_index") && !ints_attribute(node, "ignore_index").empty();
      if (ignores) head.ignored = ints_attribute(node, "ignore_index")[0];
      const auto same = [&](const Head& other) { return other.scores == head.scores; };
      if (std::none_of(heads.begin(), heads.end(), same)) heads.push_back(head);
    }
  }
  return heads;
}

Head head_of(const Graph& graph, const std::string& scores, const std::string& instead) {
  const std::vector<Head> heads = heads_of(graph);
  if (heads.empty()) {
    throw GraphError("the graph has neither SoftmaxCrossEntropy nor SigmoidCrossEntropy, whose scores it would be; " +
                     instead);
  }
  if (scores.empty()) return heads.front();
  std::vector<std::string> names;
  for (const Head& head : heads) {
    if (source_of(graph, head.scores) == source_of(graph, scores)) return head;
    names.push_back(head.scores);
  }
  throw GraphError(fmt::format("no loss compares the value '{}'; expected scores: {}{}", scores,
                               fmt::join(names, " or "), did_you_mean(scores, names)));
}

std::string other_heads(const Graph& graph, const Head& chosen) {
  std::vector<std::string> others;
  for (const Head& head : heads_of(graph)) {
    if (head.scores != chosen.scores) others.push_back("'" + head.scores + "'");
  }
  return fmt::format("{}", fmt::join(others, " or "));
}

std::vector<std::string> names_for(const Graph& graph, const std::vector<std::string>& names, int64_t classes) {
  const bool certain = int64_t(names.size()) == classes || heads_of(graph).size() < 2;
  return certain ? names : std::vector<std::string>();
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

void ConfusionMatrix::add(int64_t label, int64_t predicted) {
  ++of_[size_t(label)];
  ++taken_for_[size_t(predicted)];
  ++counts_[label * classes() + predicted];
}

std::vector<ConfusionMatrix::Cell> ConfusionMatrix::cells() const {
  std::vector<Cell> cells;
  for (const auto& [at, count] : counts_) cells.push_back({at / classes(), at % classes(), count});
  std::sort(cells.begin(), cells.end(), [](const Cell& a, const Cell& b) {
    return std::pair(a.label, a.predicted) < std::pair(b.label, b.predicted);
  });
  return cells;
}

int64_t ConfusionMatrix::count(int64_t label, int64_t predicted) const {
  const auto found = counts_.find(label * classes() + predicted);
  return found == counts_.end() ? 0 : found->second;
}

int64_t ConfusionMatrix::samples() const {
  return std::accumulate(of_.begin(), of_.end(), int64_t{0});
}

double ConfusionMatrix::accuracy() const {
  int64_t right = 0;
  for (int64_t label = 0; label < classes(); ++label) right += count(label, label);
  return fraction(right, samples());
}

double ConfusionMatrix::precision(int64_t label) const {
  return fraction(count(label, label), taken_for_[size_t(label)]);
}

double ConfusionMatrix::recall(int64_t label) const {
  return fraction(count(label, label), samples(label));
}

double ConfusionMatrix::f1(int64_t label) const {
  return fraction(2 * count(label, label), samples(label) + taken_for_[size_t(label)]);
}

double ConfusionMatrix::iou(int64_t label) const {
  const int64_t both = count(label, label);
  return fraction(both, samples(label) + taken_for_[size_t(label)] - both);
}

double ConfusionMatrix::mean(double (ConfusionMatrix::*of)(int64_t) const) const {
  double sum = 0;
  int64_t defined = 0;
  for (int64_t label = 0; label < classes(); ++label) {
    const double value = (this->*of)(label);
    if (std::isnan(value)) continue;
    sum += value;
    ++defined;
  }
  return defined > 0 ? sum / double(defined) : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace arbalest
