// SPDX-License-Identifier: Apache-2.0

// Precision, Recall and F1 over the predictions of all samples, per class or label and averaged as scikit-learn does
// with zero_division=nan.

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "ops/definition.h"
#include "ops/metrics/scored_rows.h"
#include "ops/names.h"

namespace arbalest {
namespace {

const std::vector<std::string> kAverages = {"macro", "micro", "weighted"};

// Counts of one class or label.
struct Counts {
  double right = 0, predicted = 0, positives = 0;  // right: predicted positives that are positives
};

// Whole numbers until they are divided; NaN if there is nothing to divide by.
struct Fraction {
  double part = 0, whole = 0;
  double value() const { return whole > 0 ? part / whole : std::numeric_limits<double>::quiet_NaN(); }
};

using Rate = Fraction (*)(const Counts&);

Fraction precision(const Counts& c) {
  return {c.right, c.predicted};
}
Fraction recall(const Counts& c) {
  return {c.right, c.positives};
}
Fraction f1(const Counts& c) {
  return {2 * c.right, c.predicted + c.positives};
}

// Class with the greatest score, the first among equals.
int64_t foremost_class(const ScoredRows& rows, int64_t row) {
  int64_t best = 0;
  for (int64_t c = 1; c < rows.columns().scores; ++c) {
    if (rows.score(row, c) > rows.score(row, best)) best = c;
  }
  return best;
}

// The score above which a label is predicted.
double least_score(const Node& node) {
  const double threshold = float_attribute(node, "threshold");
  return int_attribute(node, "logits") != 0 ? std::log(threshold / (1 - threshold)) : threshold;
}

std::vector<Counts> count_all(const Node& node, const ScoredRows& rows) {
  std::vector<Counts> counts(size_t(rows.columns().scores));
  const bool classes = rows.columns().classes();
  const double least = least_score(node);
  for (int64_t n = 0; n < rows.count(); ++n) {
    const int64_t best = classes ? foremost_class(rows, n) : 0;
    for (int64_t c = 0; c < rows.columns().scores; ++c) {
      if (rows.is_missing(n, c)) continue;
      const bool predicted = classes ? c == best : double(rows.score(n, c)) > least, positive = rows.is_positive(n, c);
      counts[size_t(c)].right += predicted && positive;
      counts[size_t(c)].predicted += predicted;
      counts[size_t(c)].positives += positive;
    }
  }
  return counts;
}

double average_of(const std::string& average, const std::vector<Counts>& counts, Rate rate) {
  Counts all;
  double sum = 0, weights = 0;
  for (const Counts& one : counts) {
    all.right += one.right;
    all.predicted += one.predicted;
    all.positives += one.positives;
    const Fraction of = rate(one);
    if (of.whole == 0) continue;
    const double weight = average == "weighted" ? one.positives : 1;
    sum += weight * of.part / of.whole;
    weights += weight;
  }
  return average == "micro" ? rate(all).value() : Fraction{sum, weights}.value();
}

std::vector<double> finish_rate(const Node& node, const std::vector<TensorType>& inputs, const MetricRows& kept,
                                Rate rate) {
  const ScoredRows rows(node, inputs, kept);
  const auto scores = size_t(rows.columns().scores);
  if (!rows.are_sound()) return std::vector<double>(scores > 1 ? 1 + scores : 1, Fraction().value());
  const std::vector<Counts> counts = count_all(node, rows);
  std::vector<double> all = {average_of(string_attribute(node, "average"), counts, rate)};
  for (size_t c = 0; scores > 1 && c < scores; ++c) all.push_back(rate(counts[c]).value());
  return all;
}

void infer_rate(const InferContext& context) {
  const Node& node = context.node();
  const std::string average = string_attribute(node, "average");
  if (std::find(kAverages.begin(), kAverages.end(), average) == kAverages.end()) {
    context.fail(fmt::format("attribute 'average' is \"{}\"; expected \"{}\"{}", average,
                             fmt::join(kAverages, "\", \""), did_you_mean(average, kAverages)));
  }
  flag_attribute(node, "logits");
  const double threshold = float_attribute(node, "threshold");
  if (!(threshold > 0 && threshold < 1)) {
    context.fail(fmt::format("attribute 'threshold' is {}; expected more than 0 and less than 1", threshold));
  }
  if (threshold != 0.5 &&
      ScoredColumns(node, {context.input(MetricInput::Scores), context.input(MetricInput::Labels)}).classes()) {
    context.fail("attribute 'threshold' has no effect where labels are classes: the one of the greatest score counts");
  }
}

}  // namespace

void add_rates(OpRegistry& registry) {
  const auto add = [&](const char* name, const std::string& doc, Rate rate) {
    Op op =
        scored_metric(name, doc +
                                "; of classes, of which the greatest score counts, or of labels, by a threshold; "
                                "of labels -1 (255 in uint8, or NaN) is missing, of classes what ignore_index says");
    op.attributes = {
        string_spec("average", "macro",
                    "macro: the mean of classes or labels for which it is defined; weighted: by their positives; "
                    "micro: of all together"),
        float_spec("threshold", 0.5, "the probability above which a label is predicted"),
        int_spec("logits", 1, "where labels are not classes: 1: scores are logits, 0: probabilities")};
    for (AttributeSpec& attribute : scored_attributes()) op.attributes.push_back(std::move(attribute));
    op.infer = [infer = op.infer](InferContext& context) {
      infer(context);
      infer_rate(context);
    };
    op.metric->finish = [rate](const Node& node, const std::vector<TensorType>& inputs, const MetricRows& rows) {
      return finish_rate(node, inputs, rows, rate);
    };
    registry.add(std::move(op));
  };
  add("Precision", "the share of what is predicted that is right", precision);
  add("Recall", "the share of positives that are predicted", recall);
  add("F1", "the harmonic mean of precision and recall", f1);
}

}  // namespace arbalest
