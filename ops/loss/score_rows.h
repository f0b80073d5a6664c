// SPDX-License-Identifier: Apache-2.0
#pragma once
// Scores of classes as rows, with a label each: one row a sample, or one for each of its places, such as the pixels of
// an image or the tokens of a text. Kernels have the classes along the last axis; operators may have them along others.

#include <string>
#include <utility>

#include "base/host_device.h"
#include "graph/op.h"

namespace arbalest {

struct ScoreRows {
  int64_t rows, classes, of_sample;

  explicit ScoreRows(const TensorType& scores)  // (samples, …, classes)
      : rows(element_count({scores.shape.begin(), scores.shape.end() - 1})),
        classes(scores.shape.back()),
        of_sample(element_count({scores.shape.begin() + 1, scores.shape.end() - 1})) {}

  // The rows that count if so many samples of the batch do (StepScalars::valid). They come first.
  ARBALEST_HOST_DEVICE int64_t valid(int64_t samples) const {
    const int64_t counted = samples * of_sample;
    return counted < 0 ? 0 : counted < rows ? counted : rows;
  }
};

AttributeSpec class_axis_spec();
// The axis of input 0 that has the classes, from 0. Fails unless that input is floating and has such an axis after that
// of the samples.
size_t class_axis(const InferContext& context);
// Fails unless input 1 has a class for each row of input 0.
void check_classes(const InferContext& context);

// Whether the node reads rows otherwise than kernels do: it is expanded then.
bool has_other_rows(const InferContext& context);
// Scores and labels of the node as kernels read them.
std::pair<ValueId, ValueId> rows_for_kernels(ExpandContext& context);

}  // namespace arbalest
