#pragma once
// Files that a run will write, looked at before it trains rather than after.

#include <string>
#include <utility>
#include <vector>

namespace arbalest {

using NamedPaths = std::vector<std::pair<std::string, std::string>>;  // option and path; an empty path is not given

// Throws GraphError where two are the same file.
void check_distinct_paths(const NamedPaths& files);

// Throws GraphError where an output is one of the inputs. Weights that are read may be saved over: they are read
// before, and replaced only by weights.
void check_inputs_kept(const NamedPaths& inputs, const NamedPaths& outputs);

// check_distinct_paths, and RunError where one cannot be written.
void check_output_paths(const NamedPaths& files);

// Where to put a file that cannot be written at `path`: names that nothing has, in the working directory and in the
// folder for temporary files, as far as there are such.
std::vector<std::string> other_places(const std::string& path);

// `text`, which may be anything, as the name of a file in the folder where it is written: letters, digits, '-', '_',
// '.' and what is not ASCII stay, other bytes become '_', dots in front too; at most 100 bytes. "unnamed" for "".
std::string file_name_of(const std::string& text);

}  // namespace arbalest
