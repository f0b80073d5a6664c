// SPDX-License-Identifier: Apache-2.0

// NumPy's arrays.

#include "tests/fuzz/source.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace arbalest::fuzz;
  write("train_label.npy", text(data, size));
  read_split("npy:" + folder().string() + "?classes=10", "train");
  return 0;
}
