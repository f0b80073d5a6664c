#pragma once
// A picture of samples: what a data set looks like.

#include <cstdint>
#include <string>
#include <vector>

#include "io/sources/source.h"

namespace arbalest {

struct ContactSheet {
  int columns = 0, rows = 0;
  std::vector<int32_t> classes;  // of the rows, from the top; empty: the sheet is not by class
};

// Writes a PNG, or a JPEG where the path ends in .jpg or .jpeg, of tiles of 96 × 96 pixels, each an image that is
// fitted in, dark red where it cannot be read: a row of eight for each class, of 40 classes evenly spread where there
// are more, or else 80 samples evenly spread. Throws RunError, and GraphError where the source has no images or the
// path ends in something else.
ContactSheet write_contact_sheet(const Source& source, const std::string& path);

}  // namespace arbalest
