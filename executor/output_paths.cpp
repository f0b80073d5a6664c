#include "executor/output_paths.h"

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>

#include "graph/error.h"

namespace arbalest {
namespace {

void check_output_path(const std::string& path) {
  if (path.empty()) return;
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  if (!std::filesystem::is_directory(folder)) {
    throw RunError(fmt::format("{}: cannot be written: there is no folder '{}'", path, folder.string()));
  }
  if (std::filesystem::exists(path) && !std::filesystem::is_regular_file(path)) {
    throw RunError(fmt::format("{}: cannot be written: it is there and no regular file", path));
  }
  if (access(folder.c_str(), W_OK) != 0) {
    throw RunError(fmt::format("{}: cannot be written: the folder is read-only", path));
  }
}

// Absolute first: of a file that is not there, weakly_canonical leaves "a" as it is, but not "./a".
// Some special files (/dev/stdout into a pipe) have no such path.
std::filesystem::path canonical(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path);
  const std::filesystem::path found = std::filesystem::weakly_canonical(absolute, error);
  return error ? absolute.lexically_normal() : found;
}

}  // namespace

void check_distinct_paths(const NamedPaths& files) {
  for (size_t i = 0; i < files.size(); ++i) {
    const auto& [option, path] = files[i];
    for (size_t j = 0; j < i && !path.empty(); ++j) {
      if (files[j].second.empty()) continue;
      if (canonical(path) != canonical(files[j].second)) continue;
      throw GraphError(fmt::format("{} and {} both name '{}'", files[j].first, option, path));
    }
  }
}

void check_output_paths(const NamedPaths& files) {
  for (const auto& [option, path] : files) check_output_path(path);
  check_distinct_paths(files);
}

}  // namespace arbalest
