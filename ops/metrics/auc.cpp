// SPDX-License-Identifier: Apache-2.0

// AUC: the area under the ROC curve, exact, from the scores of all samples.

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu.h"
#include "ops/definition.h"
#include "ops/metrics/scored_rows.h"

namespace arbalest {
namespace {

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

struct Scored {
  double score;
  bool positive;
};

// The chance that a positive sample scores higher than a negative one, where equal scores count one half: from the
// ranks of the positives, equals sharing the mean of theirs. NaN if one of both is missing. No score is NaN.
double area(std::vector<Scored>& samples) {
  std::sort(samples.begin(), samples.end(), [](const Scored& a, const Scored& b) { return a.score < b.score; });
  double positives = 0, ranks = 0;
  for (size_t first = 0, last = 0; first < samples.size(); first = last) {
    double among = 0;
    for (last = first; last < samples.size() && samples[last].score == samples[first].score; ++last) {
      among += samples[last].positive;
    }
    positives += among;
    ranks += among * (double(first + 1) + double(last)) / 2;
  }
  const double negatives = double(samples.size()) - positives;
  if (positives == 0 || negatives == 0) return kUndefined;
  return (ranks - positives * (positives + 1) / 2) / (positives * negatives);
}

// The greatest score of a row and log Σ exp(score − greatest), which make log probabilities of logits. They are taken
// off one after the other: rows that differ by a number have the same probabilities, and equal scores then.
struct Normaliser {
  double greatest = 0, log_of_sum = 0;
};

std::vector<Normaliser> normalisers(const ScoredRows& rows) {
  const int64_t scores = rows.columns().scores;
  std::vector<Normaliser> result(size_t(rows.count()));
  for (int64_t n = 0; n < rows.count(); ++n) {
    double greatest = rows.score(n, 0), sum = 0;
    for (int64_t c = 1; c < scores; ++c) greatest = std::max(greatest, double(rows.score(n, c)));
    for (int64_t c = 0; c < scores; ++c) sum += std::exp(double(rows.score(n, c)) - greatest);
    result[size_t(n)] = {greatest, std::log(sum)};
  }
  return result;
}

// The mean over the labels that have samples of both kinds, then each label's.
std::vector<double> finish_auc(const Node& node, const std::vector<TensorType>& inputs, const MetricRows& kept) {
  const ScoredRows rows(node, inputs, kept);
  const int64_t scores = rows.columns().scores;
  const bool sound = rows.are_sound();
  const bool softmax = rows.columns().classes() && int_attribute(node, "softmax") != 0;
  const std::vector<Normaliser> by = softmax ? normalisers(rows) : std::vector<Normaliser>();
  std::vector<double> areas(size_t(scores), kUndefined);
  parallel_for(sound ? scores : 0, 64 * rows.count(), [&](int64_t begin, int64_t end) {
    std::vector<Scored> samples;
    samples.reserve(size_t(rows.count()));
    for (int64_t c = begin; c < end; ++c) {
      bool ordered = true;  // infinite logits may have no softmax
      samples.clear();
      for (int64_t n = 0; n < rows.count(); ++n) {
        if (rows.is_missing(n, c)) continue;
        double score = rows.score(n, c);
        if (softmax) score = score - by[size_t(n)].greatest - by[size_t(n)].log_of_sum;
        samples.push_back({score, rows.is_positive(n, c)});
        ordered = ordered && !std::isnan(samples.back().score);
      }
      if (ordered) areas[size_t(c)] = area(samples);
    }
  });
  double sum = 0, defined = 0;
  for (const double one : areas) {
    if (!std::isnan(one)) sum += one, defined += 1;
  }
  std::vector<double> all = {defined > 0 ? sum / defined : kUndefined};
  if (scores > 1) all.insert(all.end(), areas.begin(), areas.end());
  return all;
}

}  // namespace

void add_auc(OpRegistry& registry) {
  Op op = scored_metric(
      "AUC",
      "the area under the ROC curve: of one score, or the mean of several labels' or classes'; of labels -1 (255 "
      "in uint8, or NaN) is missing, of classes what ignore_index says");
  op.attributes.insert(
      op.attributes.begin(),
      int_spec("softmax", 1, "where labels are classes: 1 compares the scores' softmax, 0 the scores"));
  op.infer = [infer = op.infer](InferContext& context) {
    flag_attribute(context.node(), "softmax");
    infer(context);
  };
  op.metric->finish = finish_auc;
  registry.add(std::move(op));
}

}  // namespace arbalest
