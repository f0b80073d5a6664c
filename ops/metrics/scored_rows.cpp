// SPDX-License-Identifier: Apache-2.0
#include "ops/metrics/scored_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/loss/score_rows.h"
#include "ops/names.h"

namespace arbalest {
namespace {

constexpr size_t kLeastAxes = 3;  // of scores that have places

size_t column_axis(const Node& node, size_t rank) {
  return rank < kLeastAxes ? rank - 1 : normalized_axis(int_attribute(node, "axis"), rank);
}

void infer_scored(InferContext& context) {
  using In = MetricInput;
  const TensorType& scores = floating_input(context, In::Scores);
  const TensorType& label = context.input(In::Labels);
  if (scores.shape.empty()) floating_input(context, In::Scores, {1, 2});
  const size_t rank = scores.shape.size(), axis = rank > 1 ? class_axis(context) : 0;
  Shape places = scores.shape;
  if (rank > 1) places.erase(places.begin() + std::ptrdiff_t(axis));
  const bool number = is_floating(label.dtype) || label.dtype == DataType::Int32 || label.dtype == DataType::Uint8;
  const bool shaped =
      label.shape == scores.shape || label.shape == places || (rank == 1 && label.shape == Shape{scores.shape[0], 1});
  const ScoredColumns columns(context.node(), {scores, label});
  if (!number || !shaped) {
    context.fail(fmt::format("{} is {}; expected float, int32 or uint8 in the shape of the scores, {}{}",
                             input_name(context, In::Labels), to_string(label), to_string(scores.shape),
                             columns.scores == 1 ? ""
                             : rank < kLeastAxes ? ", or a class of each sample"
                                                 : fmt::format(", or a class of each place, {}", to_string(places))));
  }
  if (ignored_label(context.node()).any && !columns.classes()) {
    context.fail("attribute 'ignore_index' is for labels that are classes; a label of each score is missing by -1");
  }
  context.set_output(0, {master_type(scores.dtype), {scores.shape[0], columns.places * columns.all()}});
}

bool has_columns_elsewhere(const InferContext& context) {
  const size_t rank = context.input(MetricInput::Scores).shape.size();
  return rank >= kLeastAxes && column_axis(context.node(), rank) + 1 != rank;
}

// Scores and labels with their columns along the last axis.
void expand_scored(ExpandContext& c) {
  using In = MetricInput;
  std::vector<ValueId> inputs = {c.input(In::Scores), c.input(In::Labels)};
  const size_t rank = c.type(inputs[In::Scores]).shape.size(), axis = column_axis(c.node(), rank);
  std::vector<int64_t> order(rank);
  std::iota(order.begin(), order.end(), int64_t{0});
  std::rotate(order.begin() + std::ptrdiff_t(axis), order.begin() + std::ptrdiff_t(axis) + 1, order.end());
  for (ValueId& value : inputs) {
    if (c.type(value).shape.size() == rank) {
      value = c.add("Transpose", value == inputs[In::Scores] ? "rows" : "labels", {value}, 1, {{"perm", order}})[0];
    }
  }
  Attributes attributes = c.node().attributes;
  attributes.set("axis", int64_t{-1});
  c.replace_output(0, c.add(c.node().op->qualified_name(), "", inputs, 1, attributes)[0]);
}

template <typename T, typename Label>
std::unique_ptr<Kernel> rows_cpu(const KernelRequest& request) {
  using In = MetricInput;
  const ScoredColumns columns(request.node, request.inputs);
  const int64_t count = request.inputs[In::Scores].shape[0] * columns.places;
  return make_kernel([=](const KernelContext& context) {
    const T* scores = input<T>(context, In::Scores);
    const Label* label = input<Label>(context, In::Labels);
    Wide<T>* rows = output<Wide<T>>(context, 0);
    for (int64_t n = 0; n < count; ++n) {
      for (int64_t c = 0; c < columns.scores; ++c) *rows++ = widen(scores[n * columns.scores + c]);
      for (int64_t c = 0; c < columns.labels; ++c) *rows++ = Wide<T>(label[n * columns.labels + c]);
    }
  });
}

template <typename T>
std::unique_ptr<Kernel> scored_cpu(const KernelRequest& request) {
  switch (request.inputs[MetricInput::Labels].dtype) {
    case DataType::Int32: return rows_cpu<T, int32_t>(request);
    case DataType::Uint8: return rows_cpu<T, uint8_t>(request);
    default: break;
  }
  return dispatch_floating(request.inputs[MetricInput::Labels].dtype,
                           [&](auto label) { return rows_cpu<T, decltype(label)>(request); });
}

std::vector<std::string> scored_parts(const Node& node, const std::vector<TensorType>& inputs) {
  const int64_t scores = ScoredColumns(node, inputs).scores;
  std::vector<std::string> names;
  for (int64_t c = 0; scores > 1 && c < scores; ++c) names.push_back(std::to_string(c));
  return names;
}

std::vector<Sample> scored_rows_samples() {
  const auto sample = [](std::string name, Shape scores, TensorType label, double greatest) {
    return Sample{.name = std::move(name),
                  .inputs = {{.type = {DataType::Float32, std::move(scores)}}, {std::move(label), 0, greatest, false}},
                  .attributes = {{"axis", int64_t{-1}}},
                  .tolerance = 1e-6};
  };
  return {sample("one score", {33}, {DataType::Int32, {33}}, 1),
          sample("a column", {8, 1}, {DataType::Uint8, {8}}, 1),
          sample("column of labels", {8}, {DataType::Float32, {8, 1}}, 1),
          sample("classes", {17, 10}, {DataType::Int32, {17}}, 9),
          sample("labels", {16, 5}, {DataType::Float32, {16, 5}}, 1),
          sample("tokens", {3, 7, 5}, {DataType::Int32, {3, 7}}, 4),
          sample("pixels", {2, 4, 5, 1}, {DataType::Uint8, {2, 4, 5, 1}}, 1),
          sample("many", {300, 70}, {DataType::Uint8, {300, 70}}, 1)};
}

}  // namespace

ScoredColumns::ScoredColumns(const Node& node, const std::vector<TensorType>& inputs) {
  const Shape &of_scores = inputs[MetricInput::Scores].shape, &of_labels = inputs[MetricInput::Labels].shape;
  if (of_scores.size() < 2) return;
  scores = of_scores[column_axis(node, of_scores.size())];
  if (of_labels.size() == of_scores.size()) labels = of_labels[column_axis(node, of_labels.size())];
  for (size_t i = 1; i < of_scores.size(); ++i) {
    if (i != column_axis(node, of_scores.size())) places *= of_scores[i];
  }
}

bool ScoredRows::is_positive(int64_t row, int64_t column) const {
  return columns_.classes() ? label(row) == column : rows_.at(row, columns_.scores + column) == 1.0f;
}

bool ScoredRows::is_missing(int64_t row, int64_t column) const {
  if (columns_.classes()) return ignored_.holds(label(row));
  const float label = rows_.at(row, columns_.scores + column);
  return label == -1.0f || std::isnan(label) || (bytes_ && label == 255.0f);
}

bool ScoredRows::are_sound() const {
  const auto greatest = float(columns_.classes() ? columns_.scores - 1 : 1);
  for (int64_t n = 0; n < count(); ++n) {
    for (int64_t c = 0; c < columns_.scores; ++c) {
      if (std::isnan(score(n, c))) return false;
    }
    for (int64_t c = 0; c < columns_.labels; ++c) {
      const float label = rows_.at(n, columns_.scores + c);
      if (is_missing(n, c)) continue;
      if (!(label >= 0 && label <= greatest) || label != std::floor(label)) return false;
    }
  }
  return true;
}

std::vector<AttributeSpec> scored_attributes() {
  return {int_spec("axis", 1, "of the scores of a place: 1 of images, -1 of tokens"), ignore_spec()};
}

Op scored_metric(std::string name, std::string doc) {
  return {.domain = "arbalest",
          .name = std::move(name),
          .doc = std::move(doc),
          .inputs = {{.name = "scores", .lowered = true}, {.name = "label"}},
          .outputs = {{.name = "rows"}},
          .attributes = scored_attributes(),
          .infer = infer_scored,
          .expand = expand_scored,
          .expands = has_columns_elsewhere,
          .samples = scored_rows_samples,
          .metric = MetricSpec{.better = MetricSpec::Better::Higher,
                               .least = 0,
                               .most = 1,
                               .keeps = MetricSpec::Keeps::Rows,
                               .parts = scored_parts},
          .compares = Comparison{Comparison::Target::Either},
          .cpu = floating_kernel([](const KernelRequest& r, auto t) { return scored_cpu<decltype(t)>(r); })};
}

void register_metrics_scored_rows(OpRegistry& registry) {
  add_auc(registry);
  add_rates(registry);
}

}  // namespace arbalest
