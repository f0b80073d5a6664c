#pragma once

#include <cstdio>
#include <string>

#include "graph/error.h"

namespace arbalest {

// Writes to standard error. Where that cannot be written (a terminal that was closed), the run goes on; fmt::print
// would throw.
inline void warn(const std::string& message) {
  std::fputs(("arbalest: " + printable(message, true) + "\n").c_str(), stderr);
}

}  // namespace arbalest
