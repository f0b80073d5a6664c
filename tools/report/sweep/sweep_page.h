// SPDX-License-Identifier: Apache-2.0
#pragma once
// The page of a sweep: one HTML file with everything in it.

#include <string>

namespace arbalest {

// Whether a path names a folder, which then should hold a sweep.
bool is_sweep_folder(const std::string& path);

// The page of the sweep in a folder, also while it runs. Throws RunError if the folder holds no sweep or a damaged one.
std::string sweep_page(const std::string& folder);

// The folder's own name, also of "." and "sweeps/one/".
std::string sweep_name(const std::string& folder);

}  // namespace arbalest
