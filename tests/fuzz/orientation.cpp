// SPDX-License-Identifier: Apache-2.0

// EXIF's orientation: a TIFF structure, as JPEG, PNG and WebP files hold it.

#include <cstdlib>

#include "io/images/orientation.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const int orientation = arbalest::exif_orientation({data, size});
  if (orientation < 1 || orientation > 8) std::abort();
  return 0;
}
