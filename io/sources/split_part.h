// SPDX-License-Identifier: Apache-2.0
#pragma once
// Parts of a split: a few of its samples, or the folds of cross-validation. Internal to io.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/sources/source.h"

namespace arbalest {

// A source that can look for the files of some of its samples, as Source::check_files() does for all: those that
// `sample` gives for 0 … count − 1. Several threads call it at once. Throws RunError.
class FileChecks {
 public:
  virtual ~FileChecks() = default;
  virtual void check_files(int64_t count, const std::function<int64_t(int64_t)>& sample) const = 0;
};

// A source whose samples may be held together by what is no field of theirs, such as a patient.
class SampleGroups {
 public:
  virtual ~SampleGroups() = default;
  virtual std::vector<int64_t> groups() const = 0;  // of each sample; empty: nothing holds samples together
};

// `limit` samples of a split in the split's order, or all if there are no more. They are the first ones of a
// permutation that is always the same. So classes are about as frequent as in the split, and a smaller limit's are
// among a larger one's. If neighbours are best read together (Source::block()), neighbours are drawn.
std::unique_ptr<Source> limited_source(std::unique_ptr<Source> source, int64_t limit);

// A fold of a split, or all the others.
struct Fold {
  int64_t folds = 2, fold = 1;  // from 1 on
  bool held_out = false;        // the fold itself; otherwise what is left
  std::string by;               // a field: samples with the same value of it stay together; "": their groups do
};

// Each class has about the same part of each fold, if the source has classes and nothing holds samples together. The
// division is always the same. Throws GraphError for a field that `source` lacks or that is no whole number, and if a
// fold would be empty.
std::unique_ptr<Source> fold_source(std::shared_ptr<const Source> source, const Fold& fold);

}  // namespace arbalest
