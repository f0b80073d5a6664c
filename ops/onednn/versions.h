// SPDX-License-Identifier: Apache-2.0
#pragma once
// Versions of libraries that kernels are made with.

#include <string>
#include <utility>
#include <vector>

namespace arbalest {

// ("onednn", "3.1.1"); empty in a build without. Those of CUDA are in executor/devices/device.h.
std::vector<std::pair<std::string, std::string>> kernel_library_versions();

}  // namespace arbalest
