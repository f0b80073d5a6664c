#pragma once
// How `arbalest predict` writes what a model makes of a sample: a line each.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "executor/inference/inference.h"
#include "tools/command/options.h"

namespace arbalest {

struct PredictedSample {
  int64_t index = 0;  // in the split
  std::string file;   // that it is in; "": none of its own
};

// What a row of scores stands for.
enum class Scores : uint8_t {
  OfClasses,           // one class a sample, the first of InferredBatch::values
  OfClassesWithLabel,  // and the second has the sample's class
  OfLabels,            // labels of which each is decided by itself
};

class PredictionLines {
 public:
  virtual ~PredictionLines() = default;
  virtual std::string head() const { return ""; }  // before all lines
  // Of row n of the batch.
  virtual std::string line(const PredictedSample& sample, const InferredBatch& batch, int64_t n) const = 0;
};

// The most probable of so many classes or labels. Throws GraphError where --class-names does not fit.
std::unique_ptr<PredictionLines> class_lines(const PredictOptions& options, const std::vector<std::string>& names,
                                             int64_t classes, Scores scores);
// The numbers of a value.
std::unique_ptr<PredictionLines> number_lines(const PredictOptions& options, const TensorType& of_sample);

}  // namespace arbalest
