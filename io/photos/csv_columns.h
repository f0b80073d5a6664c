// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which columns of a table a csv source reads. Internal to io.

#include <cstddef>
#include <optional>
#include <vector>

#include "io/formats/csv_reader.h"
#include "io/sources/source.h"

namespace arbalest {

struct CsvColumns {
  size_t path = 0;
  // One of these three: a class, several labels with a column each, or a list of labels.
  std::optional<size_t> label;
  std::vector<size_t> labels;
  std::optional<size_t> list;
  std::optional<size_t> split;  // none: a fraction is held out
  std::optional<size_t> group;
};

// From the options `path`, `label`, `labels`, `list`, `split` and `group`, and the names of columns if they are left
// out. Throws GraphError if an option names no column, or if they do not go together.
CsvColumns find_columns(const SourceSpec& spec, const CsvReader& table);

}  // namespace arbalest
