// SPDX-License-Identifier: Apache-2.0
#pragma once
// Opens data sets by what graphs and commands call them: "folder:photos?test=0.1".

#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "io/sources/source.h"

namespace arbalest {

// Makes a scheme known to open_source(), and so to graph files. Any thread may call it. Throws GraphError if the
// scheme's name is taken or invalid, or if it has no function to open it.
void register_source(SourceScheme scheme);

// No data set of the scheme has a split of this name.
class UnknownSplit : public GraphError {
 public:
  using GraphError::GraphError;
};

// Opens a split of the source that `spec` names. Its scheme is one of the library (source_schemes() describes them, as
// `arbalest sources` and docs/sources.md print it) or a registered one. Photos (folder, csv, tar) have the fields
// 'image', a file's bytes, and 'label': an int32, or a float for each of a table's several labels. Digits and noise,
// mnist and cifar have 'image', uint8, and 'label'. Every source takes ?limit=N: N samples of each split, spread over
// it, the same ones for any seed; all if there are no more. With ?folds=K&fold=N the first split is all of it but fold
// N of K, and every other split is that fold; &by=FIELD keeps samples with the same value of the field together.
// Throws GraphError for a spec that is wrong (unknown scheme or option), UnknownSplit for a split that the scheme never
// has, and GraphError if the source states no fields or no samples. Throws RunError for files that are missing or
// malformed, MissingSplit if the split has no files or samples.
std::unique_ptr<Source> open_source(const std::string& spec, const std::string& split, uint64_t seed);

// Whether samples of the source that `spec` names depend on the seed. Throws GraphError for an unknown scheme.
bool follows_seed(const std::string& spec);

}  // namespace arbalest
