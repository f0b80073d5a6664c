// SPDX-License-Identifier: Apache-2.0
#pragma once
// The combinations of settings that a bench file states.

#include <string>
#include <vector>

#include "tools/experiment/cells/bench_file.h"
#include "tools/experiment/cells/settings.h"

namespace arbalest {

// One combination. Another program's side of it is a cell of its own.
struct BenchCell {
  Settings settings;          // with the derived ones, and "peer" if it is another program's
  std::vector<size_t> place;  // on each axis
  std::string name;           // the settings that vary: "batch 64, learners 2"
  std::string id;             // 16 hexadecimal digits, which follow from the settings
  std::string peer;           // the other program; "": Arbalest
};

struct ExcludedCell {
  std::string name, reason;
};

struct BenchCells {
  std::vector<BenchCell> cells;  // the last axis of the file changes fastest
  std::vector<ExcludedCell> excluded;
  std::vector<std::string> varied;  // settings that tell cells apart, in the file's order
  std::vector<Position> idle;       // exclusions that leave out nothing
};

inline constexpr size_t kMostCells = 10'000;    // of a file, excluded ones included
inline constexpr size_t kMostTrials = 100'000;  // of a file, those of other programs included

// Multiplies the axes, derives settings, and leaves out what the file excludes. Throws GraphError with the line of an
// expression that is wrong, and for combinations that are the same or too many.
BenchCells expand(const BenchFile& file);

// Leaves the cells whose ids begin with one of these texts, or whose names have it as parts; none: all stay. Throws
// GraphError, with --cell and the file's name, for a text that is of no cell.
void keep_cells(BenchCells& cells, const std::vector<std::string>& asked, const std::string& file);

// The settings of a cell in expressions, with device_count.
double number_of(const std::string& expression, const Settings& settings, const Position& where);

// Hexadecimal digits that follow from the text.
std::string hash_of(const std::string& text);

// A shell's command with settings, quoted as it needs them, in the place of their names in braces. ${NAME} and braces
// around anything but a name stay. Throws GraphError for a name that is no setting.
std::string fill_in(const std::string& command, const Settings& settings, const Position& where);

}  // namespace arbalest
