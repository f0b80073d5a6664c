#pragma once
// Work of many parts, by several threads.

#include <cstddef>
#include <functional>

namespace arbalest {

// Calls `work` for 0 … count − 1, up to `threads` at once, of which the caller is one; fewer where the system has no
// more. What one throws ends the others, and is thrown.
void in_threads(size_t count, size_t threads, const std::function<void(size_t)>& work);

}  // namespace arbalest
