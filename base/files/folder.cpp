// SPDX-License-Identifier: Apache-2.0
#include "base/files/folder.h"

#include <fmt/format.h>

#include "base/error.h"

namespace arbalest {

void make_folders(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw RunError(fmt::format("{}: the folder cannot be made: {}", folder.string(), error.message()));
}

}  // namespace arbalest
