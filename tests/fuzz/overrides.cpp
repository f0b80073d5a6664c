// SPDX-License-Identifier: Apache-2.0

// Overrides (--set), one a line, of a small graph that is planned then.

#include "graph/file/overrides.h"
#include "tests/fuzz/plan.h"
#include "tests/fuzz/small_graph.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace arbalest;
  using namespace arbalest::fuzz;
  accepted([&] {
    Graph graph = small_graph();
    for (std::string_view rest = text(data, size); !rest.empty();) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      apply_override(graph, rest.substr(0, end));
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    plan(std::move(graph), two_learners());
  });
  return 0;
}
