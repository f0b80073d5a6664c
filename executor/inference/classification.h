// SPDX-License-Identifier: Apache-2.0
#pragma once
// The predictions of a model with one class per sample, or per place of one, and how often they are right.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"

namespace arbalest {

// The values of a graph that a loss compares: scores and what they should be.
struct Head {
  std::string scores, label;
  // SigmoidCrossEntropy compares them and decides each label by itself: scores and targets are (samples, labels).
  // Otherwise it is SoftmaxCrossEntropy: scores (samples, classes) and the samples' classes, or scores with more axes
  // and a class for each place.
  bool labels = false;
  std::optional<int64_t> ignored;  // a class whose samples take no part
  int64_t axis = 1;                // of the classes; a negative one counts from the end
};
// Those of SoftmaxCrossEntropy before those of SigmoidCrossEntropy, in the graph's order; one for each value of scores.
std::vector<Head> heads_of(const Graph& graph);
// The head of these scores, "" for the first. Throws GraphError if there is none, which asks for `instead`, as in
// "name a value".
Head head_of(const Graph& graph, const std::string& scores, const std::string& instead);
// The scores of the others, for people: "'parity' or 'size'"; "" if there are none.
std::string other_heads(const Graph& graph, const Head& chosen);
// The names of a head's classes, if `names` are the source's: none if another head's may be meant.
std::vector<std::string> names_for(const Graph& graph, const std::vector<std::string>& names, int64_t classes);

// A class or label and its probability.
struct Prediction {
  int64_t label = 0;
  double probability = 0;
};
// The `count` classes of greatest probability (softmax of the scores), or all, in descending order; of equal ones the
// first.
std::vector<Prediction> most_probable(std::span<const float> logits, size_t count);
// The same for labels that are decided each by itself: sigmoid of the scores.
std::vector<Prediction> most_probable_labels(std::span<const float> logits, size_t count);

// How many samples of each class were taken for which. Takes memory for each class, and each pair that there was.
class ConfusionMatrix {
 public:
  // Nothing is counted yet.
  explicit ConfusionMatrix(int64_t classes) : of_(size_t(classes)), taken_for_(size_t(classes)) {}

  // Counts one sample, or one place of a sample.
  void add(int64_t label, int64_t predicted);

  // Samples of one class that were taken for one.
  struct Cell {
    int64_t label = 0, predicted = 0, count = 0;
  };
  std::vector<Cell> cells() const;  // that are not 0, row by row

  int64_t classes() const { return int64_t(of_.size()); }              // as the constructor was given
  int64_t count(int64_t label, int64_t predicted) const;               // of one cell
  int64_t samples() const;                                             // in all
  int64_t samples(int64_t label) const { return of_[size_t(label)]; }  // of the class

  // Fractions; NaN if there is nothing to divide by.
  double accuracy() const;
  double precision(int64_t label) const;  // of those taken for the class, which are of it
  double recall(int64_t label) const;     // of the class, which were taken for it
  double f1(int64_t label) const;         // the harmonic mean of the two
  double iou(int64_t label) const;        // intersection over union of the two
  // Means over the classes for which they are defined.
  double mean_precision() const { return mean(&ConfusionMatrix::precision); }
  double mean_recall() const { return mean(&ConfusionMatrix::recall); }  // over classes that have samples
  double mean_f1() const { return mean(&ConfusionMatrix::f1); }          // over classes that have both
  double mean_iou() const { return mean(&ConfusionMatrix::iou); }        // over classes that have either

 private:
  double mean(double (ConfusionMatrix::*of)(int64_t) const) const;

  std::vector<int64_t> of_, taken_for_;          // samples by class
  std::unordered_map<int64_t, int64_t> counts_;  // by label · classes + predicted
};

}  // namespace arbalest
