#pragma once

#include <cstdio>
#include <string>

namespace arbalest {

// To standard error. Where that is gone, a terminal that was closed, say, the run goes on: unlike fmt::print, which
// throws.
inline void warn(const std::string& message) {
  std::fputs(("arbalest: " + message + "\n").c_str(), stderr);
}

}  // namespace arbalest
