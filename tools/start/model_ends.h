// SPDX-License-Identifier: Apache-2.0
#pragma once
// The place where a model that was trained elsewhere is cut, to give it a new head.

#include <string>

#include "graph/types.h"

namespace arbalest {

struct ModelEnds {
  int64_t channels = 3, height = 0, width = 0;  // of the images that it takes; 0: any
  bool channels_last = false;
  std::string features;  // the value that its last matrix product reads; "": it ends in none
};

// Reads an .onnx file. Throws GraphError if it is no model or does not take images.
ModelEnds ends_of(const std::string& path);

}  // namespace arbalest
