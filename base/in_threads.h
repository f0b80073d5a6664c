// SPDX-License-Identifier: Apache-2.0
#pragma once
// Parallel loops over independent parts of a task.

#include <cstddef>
#include <functional>

namespace arbalest {

// Calls `work` once for each index 0 … count − 1, on up to `threads` threads at once, including the caller's. Runs on
// fewer threads if the system cannot start more. After an exception no further index starts; it is thrown again once
// all threads have finished.
void in_threads(size_t count, size_t threads, const std::function<void(size_t)>& work);

}  // namespace arbalest
