// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reports that fit a terminal.

#include <cstdio>
#include <string>

namespace arbalest {

// A report in which no line is wider than that. A table that does not fit has narrower columns and its text below the
// rows. If that is too wide as well, each row's name is in a line of its own and the other cells below. Other lines are
// wrapped. Tables have a heading that is not indented, cells that are right-aligned below its words, and may end in
// text. Text that is two blanks apart is a cell of its own.
std::string fitted(const std::string& report, size_t width);

// Writes a report: fitted to a terminal if `out` is one, with headings in bold if that shows colours.
void put_report(std::FILE* out, const std::string& report);

}  // namespace arbalest
