// SPDX-License-Identifier: Apache-2.0

// The state of a checkpoint besides its tensors, which the input lacks: it is read or refused. State that was read is
// written and must be read back the same.

#include <nlohmann/json.hpp>

#include "executor/training/checkpoint.h"
#include "tests/fuzz/plan.h"
#include "tests/fuzz/small_graph.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace arbalest;
  using nlohmann::json;
  static const CheckpointLayout layout(prepare(fuzz::small_graph(), fuzz::two_learners()).program.training());
  const json state = json::parse(data, data + size, nullptr, false);
  if (state.is_discarded()) return 0;
  fuzz::accepted([&] {
    try {
      Checkpoint checkpoint = checkpoint_from_json(state);
      const json written = to_json(checkpoint);
      if (to_json(checkpoint_from_json(written)) != written) {
        fuzz::finding("a checkpoint is read as another", fuzz::text(data, size));
      }
      layout.decode({}, checkpoint);
    } catch (const json::exception&) {  // read_checkpoint() makes them RunError
    }
  });
  return 0;
}
