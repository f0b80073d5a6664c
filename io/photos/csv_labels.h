// SPDX-License-Identifier: Apache-2.0
#pragma once
// The labels of the samples of a table. Internal to io.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graph/field.h"
#include "io/formats/csv_reader.h"
#include "io/photos/csv_columns.h"

namespace arbalest {

class CsvLabels {
 public:
  virtual ~CsvLabels() = default;

  virtual void add(const CsvReader& row) = 0;  // throws RunError with line and column
  virtual void finish() = 0;                   // when all rows have been added; throws RunError

  // When finished:
  virtual Field field() const = 0;  // 'label'
  virtual std::vector<std::string> names() const = 0;
  virtual void write(int64_t row, std::byte* to) const = 0;  // one sample of the field
  virtual int32_t stratum(int64_t row) const = 0;  // a part that is divided by itself: the class, if it has one
};

// By the columns and the options `separator`, `none`, `missing` and `classes`. Throws GraphError.
std::unique_ptr<CsvLabels> csv_labels(const SourceSpec& spec, const CsvReader& table, const CsvColumns& columns);

}  // namespace arbalest
