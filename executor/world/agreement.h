// SPDX-License-Identifier: Apache-2.0
#pragma once
// Values that all ranks take the same decision by. Each rank gives its own and gets the same result from all of them.
// Every rank calls these at the same point. `ranks` is nullptr for a process that is alone: its own value is the
// result.

#include <cstdint>
#include <string>

#include "executor/world/ranks.h"

namespace arbalest {

int64_t largest_of(Ranks* ranks, int64_t number);
std::string first_of(Ranks* ranks, std::string text);  // of the first rank whose text is not empty; "": all are

}  // namespace arbalest
