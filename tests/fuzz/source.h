// SPDX-License-Identifier: Apache-2.0
#pragma once
// Helper of fuzz targets of sources: a source read whole.

#include <string>

#include "io/open/open_source.h"
#include "io/sources/source.h"
#include "tests/fuzz/target.h"
#include "tests/io/read_everything.h"

namespace arbalest::fuzz {

// Everything that a split tells and gives.
inline void read_split(const std::string& spec, const std::string& split) {
  accepted([&] { test::read_everything(*open_source(spec, split, 1)); });
}

}  // namespace arbalest::fuzz
