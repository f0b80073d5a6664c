// SPDX-License-Identifier: Apache-2.0

// Shards, whose index is made anew each time.

#include "tests/fuzz/source.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace arbalest::fuzz;
  std::filesystem::remove(folder() / "shard.tar.index");
  write("shard.tar", text(data, size));
  read_split("tar:" + (folder() / "shard.tar").string(), "train");
  return 0;
}
