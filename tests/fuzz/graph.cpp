// SPDX-License-Identifier: Apache-2.0

// Graph files: read, written so that they read back as the same, and planned.

#include "graph/file/graph_file.h"
#include "ops/builtin_ops.h"
#include "tests/fuzz/plan.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace arbalest;
  using namespace arbalest::fuzz;
  const std::string file = (folder() / "input.onnxtxt").string();
  const auto read = [&](std::string_view content) { return read_graph_text(content, file, builtin_ops()); };
  Graph graph;
  if (!accepted([&] { graph = read(text(data, size)); })) return 0;
  std::string written;
  if (accepted([&] { written = write_graph_text(graph); })) {
    std::string again;
    if (!accepted([&] { again = write_graph_text(read(written)); })) finding("the graph does not read back", written);
    if (again != written) finding("the graph reads back as another", written + again);
  }
  accepted([&] { plan(std::move(graph), two_learners()); });
  return 0;
}
