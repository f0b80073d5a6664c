// SPDX-License-Identifier: Apache-2.0
#pragma once
// Made of page/ by tools/page/bundle.py when the library is built.

#include "tools/page/html_page.h"

namespace arbalest {

extern const PageParts kSweepParts;

}  // namespace arbalest
