// SPDX-License-Identifier: Apache-2.0
#pragma once
// From an array of a file to a field of samples. Internal to io.

#include <cstddef>
#include <string>
#include <vector>

#include "io/sources/memory_source.h"

namespace arbalest {

// An array whose first dimension counts samples, as a file has it: row-major, so that images are (n, C, H, W).
struct StoredArray {
  std::string file, name;  // for messages; the name is the field's
  DataType dtype = DataType::Float32;
  Shape shape;
  std::vector<std::byte> bytes;
  std::string stored_as = {};  // the type in the file, if that is another one: "bool"
};

// The field's samples as Source::fill() writes them. Whole numbers of any type, one a sample, become int32, as losses
// and metrics take classes; so do those of 'label' that are (n, 1). Floating numbers of any type become floats, as do
// booleans of several a sample. Whole numbers of 'image' (C, H, W) that are all 0 to 255 become uint8. `classes`: of
// 'label', if it holds whole numbers; 0: it holds no classes. Throws RunError if there is no sample, or a number
// that an int32 or a float does not hold; GraphError if it can be no field.
FieldArray sample_array(StoredArray array, int64_t classes);

}  // namespace arbalest
