// SPDX-License-Identifier: Apache-2.0

// Tables of photos. The first byte chooses how labels are read.

#include "tests/fuzz/source.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace arbalest::fuzz;
  if (size == 0) return 0;
  static constexpr const char* kOptions[] = {"",
                                             "?labels=*",
                                             "?list=label",
                                             "?label=label&classes=3",
                                             "?group=group",
                                             "?labels=*&missing=-1",
                                             "?list=label&separator=,&none=x"};
  write("table.csv", text(data + 1, size - 1));
  const std::string spec = "csv:" + (folder() / "table.csv").string() + kOptions[data[0] % std::size(kOptions)];
  for (const char* split : {"train", "test"}) read_split(spec, split);
  return 0;
}
