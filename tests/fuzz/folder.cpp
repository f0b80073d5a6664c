// SPDX-License-Identifier: Apache-2.0

// Names of folders and files: a path a line.

#include "base/files/file.h"
#include "tests/fuzz/source.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace arbalest::fuzz;
  namespace fs = std::filesystem;
  std::error_code error;
  fs::remove_all(folder() / "set", error);
  fs::create_directory(folder() / "set", error);
  std::string_view rest = text(data, size);
  for (int made = 0; made < 16 && !rest.empty(); ++made) {
    const std::string name(rest.substr(0, rest.find('\n')));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    if (!arbalest::stays_inside(name)) continue;
    fs::create_directories((folder() / "set" / name).parent_path(), error);
    if (!error) write(fs::path("set") / name, "photo");
  }
  for (const char* split : {"train", "test", "validation"}) {
    read_split("folder:" + (folder() / "set").string(), split);
  }
  return 0;
}
