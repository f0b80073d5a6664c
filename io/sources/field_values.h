// SPDX-License-Identifier: Apache-2.0
#pragma once
// Numbers that samples hold: widened, summed up and counted, and faults in them that show without a graph.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "io/sources/source.h"

namespace arbalest {

// Elements of an array in memory; none of a type without numbers.
std::vector<double> numbers(DataType type, std::span<const std::byte> bytes);

// The first number of a sample that is not finite: "nan at element 2 of 4"; "": all are.
std::string not_finite(const Field& field, std::span<const std::byte> sample);

// Range, mean and deviation of numbers, of those that are finite.
struct FieldRange {
  int64_t count = 0;
  double least = 0, most = 0, mean = 0;
  double squares = 0;  // sum of the squared differences from the mean

  void add(std::span<const double> values);
  void add(const FieldRange& other);
  double deviation() const;
};

// The field that holds a class index, or seems to: whole numbers, one a sample, which the source gives classes or calls
// 'label', 'y' or 'target'. -1: none.
int label_field(const std::vector<Field>& fields);

// The labels of all samples of a split.
struct CountedLabels {
  std::vector<int64_t> samples;  // by label, up to the greatest class or label; empty: labels are too large for classes
  std::vector<std::pair<int64_t, int64_t>>
      faulty;  // samples with labels below 0, or beyond the classes that are stated
};
CountedLabels count_labels(const Source& source, int field);

// Says what a label that is no class is, and what is expected: "'label' is -1, expected 0 to 9 …".
std::string fault_of_label(const Field& field, int64_t label);

// A note if labels begin with 1 and none is left out: there is a class more than there are kinds of samples. "" for
// other labels, and if the source names classes. `samples`: how many have each label; `classes`: as many as there
// are, 0 if that is not known.
std::string counted_from_one(const std::map<int64_t, int64_t>& samples, int64_t classes, const Source& source);
// The same of samples by label, 0 for labels that none has, up to the last class.
std::string counted_from_one(std::span<const int64_t> samples, const Source& source);

// Calls `use` with the content of the field for some thousand samples at a time, from the first to the last of all.
void each_chunk(const Source& source, int field, const std::function<void(std::span<const std::byte>)>& use);

}  // namespace arbalest
