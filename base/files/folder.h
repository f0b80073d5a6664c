// SPDX-License-Identifier: Apache-2.0
#pragma once
// Folders that are written to.

#include <filesystem>

namespace arbalest {

// Makes a folder, and those that it is in, as far as they are not there. Throws RunError that names it and says why it
// cannot be made.
void make_folders(const std::filesystem::path& folder);

}  // namespace arbalest
