// SPDX-License-Identifier: Apache-2.0
#pragma once
// The folder in which choices of engines and compiled kernels are kept for later processes.

#include <filesystem>

namespace arbalest {

// $ARBALEST_CACHE, or else arbalest/ in $XDG_CACHE_HOME or in $HOME/.cache. "" if $ARBALEST_CACHE is set and empty, or
// if none of them is set.
std::filesystem::path cache_folder();

}  // namespace arbalest
