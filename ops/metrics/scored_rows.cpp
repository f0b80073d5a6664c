// SPDX-License-Identifier: Apache-2.0
#include "ops/metrics/scored_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/names.h"

namespace arbalest {
namespace {

int64_t columns_of(const TensorType& type) {
  return type.shape.size() > 1 ? type.shape[1] : 1;
}

void infer_scored(InferContext& context) {
  using In = MetricInput;
  const TensorType& scores = floating_input(context, In::Scores, {1, 2});
  const TensorType& label = context.input(In::Labels);
  const bool number = is_floating(label.dtype) || label.dtype == DataType::Int32 || label.dtype == DataType::Uint8;
  const bool shaped = label.shape == scores.shape || label.shape == Shape{scores.shape[0]} ||
                      (scores.shape.size() == 1 && label.shape == Shape{scores.shape[0], 1});
  if (!number || !shaped) {
    context.fail(fmt::format("{} is {}; expected float, int32 or uint8 in the shape of the scores, {}{}",
                             input_name(context, In::Labels), to_string(label), to_string(scores.shape),
                             columns_of(scores) > 1 ? ", or a class of each sample" : ""));
  }
  const ScoredColumns columns({scores, label});
  if (ignored_label(context.node()).any && !columns.classes()) {
    context.fail("attribute 'ignore_index' is for labels that are classes; a label of each score is missing by -1");
  }
  context.set_output(0, {master_type(scores.dtype), {scores.shape[0], columns.all()}});
}

template <typename T, typename Label>
std::unique_ptr<Kernel> rows_cpu(const KernelRequest& request) {
  using In = MetricInput;
  const ScoredColumns columns(request.inputs);
  const int64_t batch = request.inputs[In::Scores].shape[0];
  return make_kernel([=](const KernelContext& context) {
    const T* scores = input<T>(context, In::Scores);
    const Label* label = input<Label>(context, In::Labels);
    Wide<T>* rows = output<Wide<T>>(context, 0);
    for (int64_t n = 0; n < batch; ++n) {
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

std::vector<std::string> scored_parts(const Node&, const std::vector<TensorType>& inputs) {
  const int64_t scores = ScoredColumns(inputs).scores;
  std::vector<std::string> names;
  for (int64_t c = 0; scores > 1 && c < scores; ++c) names.push_back(std::to_string(c));
  return names;
}

std::vector<Sample> scored_rows_samples() {
  const auto sample = [](std::string name, Shape scores, TensorType label, double greatest) {
    return Sample{.name = std::move(name),
                  .inputs = {{.type = {DataType::Float32, std::move(scores)}}, {std::move(label), 0, greatest, false}},
                  .tolerance = 1e-6};
  };
  return {sample("one score", {33}, {DataType::Int32, {33}}, 1),
          sample("a column", {8, 1}, {DataType::Uint8, {8}}, 1),
          sample("column of labels", {8}, {DataType::Float32, {8, 1}}, 1),
          sample("classes", {17, 10}, {DataType::Int32, {17}}, 9),
          sample("labels", {16, 5}, {DataType::Float32, {16, 5}}, 1),
          sample("many", {300, 70}, {DataType::Uint8, {300, 70}}, 1)};
}

}  // namespace

ScoredColumns::ScoredColumns(const std::vector<TensorType>& inputs)
    : scores(columns_of(inputs[MetricInput::Scores])), labels(columns_of(inputs[MetricInput::Labels])) {}

bool ScoredRows::is_positive(int64_t sample, int64_t column) const {
  return columns_.classes() ? label(sample) == column : rows_.at(sample, columns_.scores + column) == 1.0f;
}

bool ScoredRows::is_missing(int64_t sample, int64_t column) const {
  if (columns_.classes()) return ignored_.holds(label(sample));
  const float label = rows_.at(sample, columns_.scores + column);
  return label == -1.0f || std::isnan(label) || (bytes_ && label == 255.0f);
}

bool ScoredRows::are_sound() const {
  const auto greatest = float(columns_.classes() ? columns_.scores - 1 : 1);
  for (int64_t n = 0; n < samples(); ++n) {
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

Op scored_metric(std::string name, std::string doc) {
  return {.domain = "arbalest",
          .name = std::move(name),
          .doc = std::move(doc),
          .inputs = {{.name = "scores", .lowered = true}, {.name = "label"}},
          .outputs = {{.name = "rows"}},
          .attributes = {ignore_spec()},
          .infer = infer_scored,
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
