// SPDX-License-Identifier: Apache-2.0

// Indexes next to a sound shard: what follows its size and time of change.

#include <sys/stat.h>

#include "tests/fuzz/source.h"
#include "tests/io/tar_writer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace arbalest::fuzz;
  static const std::string start = [] {
    using arbalest::test::tar_member;
    write("shard.tar", tar_member("0.jpg", "photo") + tar_member("0.cls", "1") + tar_member("1.png", "another") +
                           tar_member("1.cls", "0") + arbalest::test::tar_end());
    struct stat status = {};
    stat((folder() / "shard.tar").c_str(), &status);
    const int64_t changed = int64_t(status.st_mtim.tv_sec) * 1'000'000'000 + status.st_mtim.tv_nsec;
    return "arbalest tar index 2\n" + std::to_string(status.st_size) + " " + std::to_string(changed) + " ";
  }();
  write("shard.tar.index", start + std::string(text(data, size)));
  read_split("tar:" + (folder() / "shard.tar").string(), "train");
  return 0;
}
