// SPDX-License-Identifier: Apache-2.0
#pragma once
// Finds faults in the samples of a loop.

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "io/sources/source.h"
#include "passes/program.h"

namespace arbalest {

// Counting: the note alone, of as many samples as show that there is none.
enum class LookFor : uint8_t { Labels, LabelsAndNumbers, Counting };

struct DataFault {
  bool of_label = false;  // otherwise a number that is not finite
  std::string text;       // the first such sample, value and range: "sample 7 of split 'train': 'label' is 3; node …"
};

struct DataFindings {
  std::optional<DataFault> fault;
  std::string note;  // about labels that are sound one by one: counted from 1, all missing; "": none
};

// Reads samples once more, on the calling thread. Finds labels that a loss or a metric of the loop cannot take, also if
// nodes compute them of the source's fields. If asked for, finds floating fields that are nan or infinite. A missing
// label is neither. `samples`: indices; none: all of the split. Throws what the source throws.
DataFindings look_at_data(const Loop& loop, const Source& source, const std::string& split, LookFor what,
                          std::span<const int64_t> samples = {});
std::optional<DataFault> fault_in_data(const Loop& loop, const Source& source, const std::string& split, LookFor what,
                                       std::span<const int64_t> samples = {});

// Names numbers of the split that a layer takes as they are and that are so large that training
// probably fails for them: field, range and node, with a remedy. "": no such numbers. Looks at some samples. `graph`:
// as the user has it, with fields known.
std::string unscaled_numbers(const Graph& graph, const Source& source, const std::string& split);

}  // namespace arbalest
