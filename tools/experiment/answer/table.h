// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tables of results: for a terminal, Markdown or CSV.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/experiment/answer/statistics.h"

namespace arbalest {

struct TableColumn {
  std::string name;
  bool number = true;                   // numbers are aligned to the right
  bool interval = false;                // in CSV its bounds are two more columns, NAME low and NAME high
  std::vector<std::string> parts = {};  // further columns in CSV, NAME PART
};

struct TableValue {
  std::string text;                   // as people read it
  std::optional<double> number = {};  // as programs do; none: unknown, or a column of texts
  std::optional<Confidence> interval = {};
  std::vector<std::optional<double>> parts = {};  // in the order of TableColumn::parts; empty: all unknown
};

struct ResultTable {
  std::string title;
  std::vector<TableColumn> columns;
  std::vector<std::vector<TableValue>> rows;
  std::vector<std::string> notes;  // below it; not in CSV
};

enum class TableFormat : uint8_t { Text, Markdown, Csv };

// The tables one after the other, with an empty line between them. In CSV each row begins with its table's title, and a
// column of numbers has nothing else: an unknown one is empty.
std::string print_tables(const std::vector<ResultTable>& tables, TableFormat format);

}  // namespace arbalest
