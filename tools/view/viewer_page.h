// SPDX-License-Identifier: Apache-2.0
#pragma once
// The viewer: one HTML file with everything in it.

#include <string>
#include <vector>

#include "tools/view/viewer_data.h"

namespace arbalest {

// Names may hold anything: what they say is data in the page, and neither markup nor script.
std::string viewer_page(const std::vector<ViewerData>& traces);

}  // namespace arbalest
