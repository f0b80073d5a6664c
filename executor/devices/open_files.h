// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace arbalest {

// Throws RunError unless `count` more files can be open at the same time: for libraries that need sockets and do not
// say that the limit on open files kept them from one.
void expect_open_files(int count, const std::string& what);

}  // namespace arbalest
