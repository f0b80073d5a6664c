// SPDX-License-Identifier: Apache-2.0
#pragma once
// Places of a part's samples in the whole.

#include <cstdint>

#include "io/sources/source.h"

namespace arbalest {

// The sample's place in its split as the data have it, from 0 on, whatever `limit` and `folds` leave of that.
int64_t index_in_split(const Source& source, int64_t index);

}  // namespace arbalest
