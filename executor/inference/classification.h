#pragma once
// What a model with one class a sample predicts, and how often it is right.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "graph/graph.h"

namespace arbalest {

// The values of a graph that its first SoftmaxCrossEntropy compares: scores (samples, classes) and the samples'
// classes.
struct ClassifiedValues {
  std::string logits, label;
  std::optional<int64_t> ignored;  // a class whose samples take no part
};
std::optional<ClassifiedValues> classified_values(const Graph& graph);  // none: the graph has no such loss
// Those of its first SigmoidCrossEntropy, which decides each label by itself: scores and targets (samples, labels).
std::optional<ClassifiedValues> labelled_values(const Graph& graph);
// The scores of the former or, without that loss, of the latter; throws GraphError where the graph has neither loss,
// which asks for `instead`, as in "name a value".
std::string scores_of(const Graph& graph, const std::string& instead);
// Whether a SigmoidCrossEntropy compares the value: its probabilities are its sigmoid then, not its softmax.
bool scores_labels(const Graph& graph, ValueId value);

struct Prediction {
  int64_t label = 0;
  double probability = 0;
};
// The `count` classes of greatest probability (softmax of the scores), or all, in descending order; of equal ones the
// first.
std::vector<Prediction> most_probable(std::span<const float> logits, size_t count);
// The same for labels that are decided each by itself: sigmoid of the scores.
std::vector<Prediction> most_probable_labels(std::span<const float> logits, size_t count);

// How many samples of each class were taken for which.
class ConfusionMatrix {
 public:
  explicit ConfusionMatrix(int64_t classes) : classes_(classes), counts_(size_t(classes * classes), 0) {}

  void add(int64_t label, int64_t predicted) { ++counts_[size_t(label * classes_ + predicted)]; }

  int64_t classes() const { return classes_; }
  int64_t count(int64_t label, int64_t predicted) const { return counts_[size_t(label * classes_ + predicted)]; }
  int64_t samples() const;  // in all
  int64_t samples(int64_t label) const;

  // Fractions; NaN where there is nothing to divide by.
  double accuracy() const;
  double precision(int64_t label) const;  // of those taken for the class, which are of it
  double recall(int64_t label) const;     // of the class, which were taken for it
  double f1(int64_t label) const;         // the harmonic mean of the two
  // Means over the classes for which they are defined.
  double mean_precision() const { return mean(&ConfusionMatrix::precision); }
  double mean_recall() const { return mean(&ConfusionMatrix::recall); }
  double mean_f1() const { return mean(&ConfusionMatrix::f1); }

 private:
  int64_t predicted_as(int64_t label) const;
  double mean(double (ConfusionMatrix::*of)(int64_t) const) const;

  int64_t classes_;
  std::vector<int64_t> counts_;  // label by label
};

}  // namespace arbalest
