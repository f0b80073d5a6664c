// SPDX-License-Identifier: Apache-2.0
#pragma once
// The records that make an operator a metric or a loss: what a loop keeps of its output, how that becomes numbers,
// which direction is better, and what it compares.

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "graph/types.h"

namespace arbalest {

struct Node;

// The rows that a metric with MetricSpec::Keeps::Rows has kept: one per sample, in the order of the data, over all
// devices.
struct MetricRows {
  std::span<const float> values;  // (samples, columns), row-major
  int64_t columns = 0;

  int64_t samples() const { return columns > 0 ? int64_t(values.size()) / columns : 0; }
  float at(int64_t sample, int64_t column) const { return values[size_t(sample * columns + column)]; }
};

struct MetricSpec {
  enum class Better : uint8_t { Higher, Lower };
  // Mean: output 0 is a scalar, the mean over the batch's valid samples. The device sums it, weighted by their number;
  // sums of several devices are added; the metric is the mean over all samples.
  // Rows: output 0 is float (batch, columns). The device keeps the row of every valid sample; rows of several devices
  // are put in the order of the data; finish() makes the metric of them, on the host. Only validations have these.
  enum class Keeps : uint8_t { Mean, Rows };

  std::optional<Better> better = {};                        // none: the user states it if something needs the best
  double least = -std::numeric_limits<double>::infinity();  // the range of the metric
  double most = std::numeric_limits<double>::infinity();
  Keeps keeps = Keeps::Mean;
  bool counts = false;  // Mean: the share of the batch's samples of which something is so, 0 or 1 for each

  // For Rows. finish() returns the metric and then its parts, NaN for what the samples leave undefined. parts() names
  // these: "0" of the metric "auc" is called "auc/0". None: there are none. `inputs` are the types of the node's
  // inputs.
  std::function<std::vector<std::string>(const Node& node, const std::vector<TensorType>& inputs)> parts = nullptr;
  std::function<std::vector<double>(const Node& node, const std::vector<TensorType>& inputs, const MetricRows& rows)>
      finish = nullptr;
};

// Scores (input 0) and targets (input 1) that a loss or a metric compares, a row for each sample or for each of its
// places.
struct Comparison {
  // The content of input 1. Classes: a class number for each row, or a row of floats with a target for each class.
  // Labels: for each score a value from 0 to 1, or missing. Either: classes if there is a row of scores and one number
  // for it, labels otherwise. Numbers: any.
  enum class Target : uint8_t { Classes, Labels, Either, Numbers };
  enum class Activation : uint8_t { None, Softmax, Sigmoid };

  Target target = Target::Numbers;
  Activation activation = Activation::None;  // that a loss itself applies to its scores
};

}  // namespace arbalest
