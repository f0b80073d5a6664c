// SPDX-License-Identifier: Apache-2.0
#pragma once
// Samples to look at: what a data set shows.

#include <cstdint>
#include <string>
#include <vector>

#include "io/sources/source.h"
#include "tools/data/survey.h"

namespace arbalest {

struct ContactSheet {
  int columns = 0, rows = 0;
  std::vector<int32_t> classes;  // of the rows, from the top; empty: the sheet is not by class
  int64_t all_classes = 0;       // that have samples
};

// Throws GraphError if the source has no images or the path ends in what is no form of a sheet.
void check_contact_sheet(const Source& source, const std::string& path);

// Writes a sheet of samples, a row for each class with its name, or, if there are no classes, of samples evenly
// spread. The form is what the path ends in:
//   .html        a page of pages, with a search for classes: up to eight samples of each, 10 000 samples in all. Of
//   more
//                classes each has fewer, and of more than 10 000 so many are there, evenly spread. Samples have their
//                names, and those that cannot be read say why.
//   .png, .jpg   a picture of tiles of 96 × 96 pixels, each an image that is fitted in, dark red if it cannot be
//                read: eight samples of each class, of 40 classes evenly spread if there are more.
// `survey` is of the source's split. `threads`: that decode. Throws RunError, and as check_contact_sheet() does.
ContactSheet write_contact_sheet(const Source& source, const SplitSurvey& survey, const std::string& path, int threads);

}  // namespace arbalest
