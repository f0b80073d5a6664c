// SPDX-License-Identifier: Apache-2.0
#pragma once
// Files that a program names one by one, as a split: what a trained model is asked about.

#include <memory>
#include <string>
#include <vector>

#include "io/sources/source.h"

namespace arbalest {

// `paths`: at least one. `fields`: what the model's graph reads of a sample; those that are strings are the file's
// bytes, all others, such as labels, are zeros. Throws RunError if a path is a folder; other faults show when a file is
// read.
std::unique_ptr<Source> file_list_source(const std::vector<std::string>& paths, std::vector<Field> fields);

}  // namespace arbalest
