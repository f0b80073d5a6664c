// SPDX-License-Identifier: Apache-2.0
#pragma once
// The forms of a contact sheet: a picture, and a page.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "io/sources/source.h"
#include "tools/data/survey.h"

namespace arbalest {

struct SheetRows {
  size_t columns = 0;                         // samples of a row at most
  std::vector<std::vector<int64_t>> samples;  // of each row, by their index
  std::vector<int32_t> classes;               // of the rows; empty: the rows are of no class
  std::vector<int64_t> counts;                // samples of each of these classes
  int64_t all_classes = 0;                    // that have samples
};

// The source of images, and how many threads decode them.
struct SheetImages {
  const Source& source;
  int field;
  int threads;
};

// A PNG or a JPEG. Throws RunError.
std::vector<uint8_t> sheet_picture(const SheetImages& images, const SheetRows& rows, bool png);

// One HTML file with everything in it. Throws RunError.
std::string sheet_page(const SheetImages& images, const SheetRows& rows, const SplitSurvey& survey);

}  // namespace arbalest
