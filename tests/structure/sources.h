// SPDX-License-Identifier: Apache-2.0
#pragma once
// The sources themselves, for tests that read them.

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace arbalest::test {

namespace fs = std::filesystem;

inline fs::path root() {
  const char* folder = std::getenv("ARBALEST_SOURCE");
  return folder ? folder : ".";
}

inline std::string content(const fs::path& path) {
  std::ifstream file(path);
  REQUIRE_MESSAGE(file.good(), path.string());
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

inline bool is_source(const fs::path& path) {
  const std::string extension = path.extension();
  return extension == ".h" || extension == ".cpp" || extension == ".cu" || extension == ".cuh" || extension == ".in";
}

}  // namespace arbalest::test
