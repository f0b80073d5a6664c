// SPDX-License-Identifier: Apache-2.0
#pragma once
// Tables of results: for a terminal, Markdown or CSV.

#include <optional>
#include <string>
#include <vector>

#include "tools/experiment/answer/statistics.h"

namespace arbalest {

struct TableColumn {
  std::string name;
  bool number = true;     // numbers are aligned to the right
  bool interval = false;  // in CSV its bounds are two more columns, NAME low and NAME high
};

struct TableValue {
  std::string text;                   // as people read it
  std::optional<double> number = {};  // as programs do; none: the text
  std::optional<Confidence> interval = {};
};

struct ResultTable {
  std::string title;
  std::vector<TableColumn> columns;
  std::vector<std::vector<TableValue>> rows;
  std::vector<std::string> notes;  // below it; not in CSV
};

enum class TableFormat { Text, Markdown, Csv };

// The tables one after the other, with an empty line between them. In CSV each row begins with its table's title.
std::string print_tables(const std::vector<ResultTable>& tables, TableFormat format);

}  // namespace arbalest
