// SPDX-License-Identifier: Apache-2.0
#include "base/files/cache_folder.h"

#include <cstdlib>

namespace arbalest {

std::filesystem::path cache_folder() {
  const char *own = std::getenv("ARBALEST_CACHE"), *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  if (own) return own;
  if (cache && *cache == '/') return std::filesystem::path(cache) / "arbalest";
  return home && *home == '/' ? std::filesystem::path(home) / ".cache/arbalest" : std::filesystem::path();
}

}  // namespace arbalest
