// SPDX-License-Identifier: Apache-2.0
#pragma once
// The files that a pattern names. Internal to io.

#include <string>
#include <vector>

namespace arbalest {

// "{0000..0099}" stands for each of these numbers, as wide as the first, "{a,b}" for each of these; then '*' and "[ab]"
// for what there is. In the order of the braces, and for '*' in byte order; a file that two of them name comes once.
// Those of braces need not be there. Throws GraphError if braces are malformed, or stand for more than a million.
std::vector<std::string> files_of(const std::string& pattern);

}  // namespace arbalest
