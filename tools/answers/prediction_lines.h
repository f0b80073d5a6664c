#pragma once
// How `arbalest predict` writes what a model makes of a sample: a line each.

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
  std::string file;   // that it is in; "": none of its own
};

// What a row of scores stands for.
enum class Scores : uint8_t {
  OfClasses,           // one class a sample, the first of InferredBatch::values
  OfClassesWithLabel,  // and the second has the sample's class
  OfLabels,            // labels of which each is decided by itself
  OfLabelsWithTruth,   // and the second has what they are
};

// How classes or labels are written.
struct ClassFormat {
  LineFormat format = LineFormat::Lines;
  int top = 0;                       // classes a sample; 0: one, or all labels where there are several a sample
  std::vector<std::string> names;    // of all of them
  DataType label = DataType::Int32;  // of the second value, where there is one
};

class PredictionLines {
 public:
  virtual ~PredictionLines() = default;
  virtual std::string head() const { return ""; }  // before all lines
  // Of row n of the batch.
  virtual std::string line(const PredictedSample& sample, const InferredBatch& batch, int64_t n) const = 0;
};

// The most probable classes or labels.
std::unique_ptr<PredictionLines> class_lines(ClassFormat format, Scores scores);
// The numbers of a value.
std::unique_ptr<PredictionLines> number_lines(LineFormat format, const std::string& value, const TensorType& of_sample);

}  // namespace arbalest
