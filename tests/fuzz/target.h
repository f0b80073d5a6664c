// SPDX-License-Identifier: Apache-2.0
#pragma once
// Shared parts of fuzz targets: a folder to write the input into, and the outcomes that an input may have.

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "base/error.h"

namespace arbalest::fuzz {

// The folder of this process in TMPDIR, which is fastest in memory (/dev/shm).
inline const std::filesystem::path& folder() {
  static const std::filesystem::path path = [] {
    auto made = std::filesystem::temp_directory_path() / ("arbalest-fuzz-" + std::to_string(getpid()));
    std::filesystem::create_directories(made);
    return made;
  }();
  return path;
}

inline std::string write(const std::filesystem::path& name, std::string_view content) {
  const std::filesystem::path path = folder() / name;
  std::ofstream(path, std::ios::binary) << content;
  return path.string();
}

inline std::string_view text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Whether the work was done: it may refuse its input by GraphError or RunError. Anything else ends the fuzzer.
template <typename Work>
bool accepted(const Work& work) try {
  work();
  return true;
} catch (const GraphError&) {
  return false;
} catch (const RunError&) {
  return false;
}

// Ends the fuzzer.
[[noreturn]] inline void finding(const char* what, std::string_view shown) {
  std::fprintf(stderr, "%s: %s\n", what, printable(shown, true).c_str());
  std::abort();
}

// Text that a command writes to a terminal. Lines may be of any number; nothing in them moves its cursor.
inline void expect_printable(const std::string& text) {
  if (printable(text, true) != text) finding("a terminal would be sent control characters", text);
}

}  // namespace arbalest::fuzz
