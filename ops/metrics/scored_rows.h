// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rows that metrics over the scores and labels of all samples keep of a batch: one row of floats per sample, or one for
// each of its places, such as the pixels of an image.

#include <string>
#include <vector>

#include "graph/op.h"
#include "ops/definition.h"
#include "ops/names.h"

namespace arbalest {

// Columns of a row: the scores, then the labels. If there are several scores and one label, the label is a class;
// otherwise there is a label of 0 or 1 for each score. Scores of more than two axes have their columns along `axis`.
struct ScoredColumns {
  int64_t scores = 1, labels = 1;
  int64_t places = 1;  // rows of a sample

  ScoredColumns(const Node& node, const std::vector<TensorType>& inputs);  // of scores and labels
  int64_t all() const { return scores + labels; }
  bool classes() const { return scores > 1 && labels == 1; }
};

// The rows of all samples and places. Labels of -1 and NaN, or 255 in uint8, are missing, as for SigmoidCrossEntropy. A
// class is missing if `node` says that it is ignored.
class ScoredRows {
 public:
  ScoredRows(const Node& node, const std::vector<TensorType>& inputs, const MetricRows& rows)
      : columns_(node, inputs),
        bytes_(inputs[MetricInput::Labels].dtype == DataType::Uint8),
        ignored_(ignored_label(node)),
        rows_{rows.values, columns_.all()} {}

  const ScoredColumns& columns() const { return columns_; }
  int64_t count() const { return rows_.samples(); }
  float score(int64_t row, int64_t column) const { return rows_.at(row, column); }
  int64_t label(int64_t row) const { return int64_t(rows_.at(row, columns_.scores)); }  // if it is a class
  bool is_positive(int64_t row, int64_t column) const;
  bool is_missing(int64_t row, int64_t column) const;
  // True if scores are numbers, and labels are 0, 1 or missing, or existing classes.
  bool are_sound() const;

 private:
  ScoredColumns columns_;
  bool bytes_;
  IgnoredLabel ignored_;
  MetricRows rows_;
};

// The attributes that all of these have.
std::vector<AttributeSpec> scored_attributes();
// A metric's record, of scores and labels, with axis and ignore_index; other attributes and MetricSpec::finish are the
// caller's.
Op scored_metric(std::string name, std::string doc);

void add_auc(OpRegistry& registry);
void add_rates(OpRegistry& registry);  // Precision, Recall, F1

}  // namespace arbalest
