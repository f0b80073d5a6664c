#pragma once
// Metrics that need the scores and the labels of all samples: what they keep of a batch, a row of floats a sample.

#include <string>
#include <vector>

#include "graph/op.h"
#include "ops/ignored_label.h"

namespace arbalest {

// What a row holds: the scores, then the labels. Labels are classes where there are several scores and one label;
// otherwise there is a label of 0 or 1 for each score.
struct ScoredColumns {
  int64_t scores = 1, labels = 1;

  explicit ScoredColumns(const std::vector<TensorType>& inputs);  // scores and labels
  int64_t all() const { return scores + labels; }
  bool classes() const { return scores > 1 && labels == 1; }
};

// The rows of all samples. Labels of -1 and NaN, or 255 in uint8, are missing, as for SigmoidCrossEntropy; a class is
// where `node` says that it is ignored.
class ScoredRows {
 public:
  ScoredRows(const Node& node, const std::vector<TensorType>& inputs, const MetricRows& rows)
      : columns_(inputs), bytes_(inputs[1].dtype == DataType::Uint8), ignored_(ignored_label(node)), rows_(rows) {}

  const ScoredColumns& columns() const { return columns_; }
  int64_t samples() const { return rows_.samples(); }
  float score(int64_t sample, int64_t column) const { return rows_.at(sample, column); }
  int64_t label(int64_t sample) const { return int64_t(rows_.at(sample, columns_.scores)); }  // where it is a class
  bool is_positive(int64_t sample, int64_t column) const;
  bool is_missing(int64_t sample, int64_t column) const;
  // Whether scores are numbers and labels are 0 and 1 or missing, or classes that there are.
  bool are_sound() const;

 private:
  ScoredColumns columns_;
  bool bytes_;
  IgnoredLabel ignored_;
  MetricRows rows_;
};

// A metric's record, of scores and labels, with ignore_index; other attributes and MetricSpec::finish are the caller's.
Op scored_metric(std::string name, std::string doc);

void add_auc(OpRegistry& registry);
void add_rates(OpRegistry& registry);  // Precision, Recall, F1

}  // namespace arbalest
