#pragma once
// Files that a run will write, looked at before it trains rather than after.

#include <string>
#include <utility>
#include <vector>

namespace arbalest {

using NamedPaths = std::vector<std::pair<std::string, std::string>>;  // option and path; an empty path is not given

// Throws GraphError where two are the same file.
void check_distinct_paths(const NamedPaths& files);

// The same, and RunError where one cannot be written.
void check_output_paths(const NamedPaths& files);

}  // namespace arbalest
