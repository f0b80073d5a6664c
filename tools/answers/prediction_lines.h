// SPDX-License-Identifier: Apache-2.0
#pragma once
// The output of `arbalest predict`: one line per sample with the model's prediction.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "executor/inference/inference.h"
#include "graph/types.h"

namespace arbalest {

enum class LineFormat : uint8_t { Lines, Json, Csv };

struct PredictedSample {
  int64_t index = 0;  // in the split
  std::string file;   // that holds the sample; "": it has no file of its own
};

// The meaning of a row of scores, the first of InferredBatch::values, and of the second value.
enum class Scores : uint8_t {
  OfClasses,           // of classes, one per sample
  OfClassesWithLabel,  // the same, and the second value is the sample's class
  OfLabels,            // of labels, each of which is decided by itself
  OfLabelsWithTruth,   // the same, and the second value holds the true labels
};

// How classes or labels are written.
struct ClassFormat {
  LineFormat format = LineFormat::Lines;
  int top = 0;                        // classes per sample; 0: one, or all labels if there are several per sample
  std::vector<std::string> names;     // of all of them
  DataType label = DataType::Int32;   // of the second value, if there is one
  std::vector<int64_t> classes = {};  // by class of the data: the model's, −1: none; empty: the same
  bool each_class = false;            // CSV has a column for the probability of each class, after the most probable
};

// A value of which InferredBatch::values has numbers.
struct NumbersOf {
  std::string value;
  TensorType of_sample;
};

class PredictionLines {
 public:
  virtual ~PredictionLines() = default;
  virtual std::string head() const { return ""; }  // before all lines
  // The line for row n of the batch.
  virtual std::string line(const PredictedSample& sample, const InferredBatch& batch, int64_t n) const = 0;
};

// The most probable classes or labels.
std::unique_ptr<PredictionLines> class_lines(ClassFormat format, Scores scores);
// The numbers of values, the first of InferredBatch::values; JSON has those of the first alone.
std::unique_ptr<PredictionLines> number_lines(LineFormat format, std::vector<NumbersOf> values);

}  // namespace arbalest
