#pragma once
// Work of many parts that mostly waits for the disk. Internal to io.

#include <cstddef>
#include <functional>

namespace arbalest {

// Calls `work` for 0 … count − 1, a few at once. What one throws ends the others, and is thrown.
void in_threads(size_t count, const std::function<void(size_t)>& work);

}  // namespace arbalest
