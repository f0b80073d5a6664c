// SPDX-License-Identifier: Apache-2.0
#pragma once
// The content of folders of photos, by one pass over their entries that looks at no file. Internal to io.

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "io/photos/path_list.h"
#include "io/sources/source.h"

namespace arbalest {

// The folders, and links to folders, in `folder`, in byte order; hidden ones are left out, and so are links to `folder`
// and to folders above it. Adds to `images` how many images lie next to them. Throws RunError.
std::vector<std::string> folders_in(const std::string& folder, int64_t* images = nullptr);

// Adds the images below `folder`, at any depth, each as `prefix` and its path relative to the folder. Links are
// followed, except to folders above, and a folder that is met again is not walked again. Links with the name of an
// image that lead nowhere are images that are missing: `missing` has them as well. Hidden files and folders are left
// out. Adds to `others` what other files there are. Throws RunError if a folder cannot be read.
void list_images(const std::string& folder, const std::string& prefix, PathList& images,
                 std::set<std::string, std::less<>>& missing, PassedOver& others);

}  // namespace arbalest
