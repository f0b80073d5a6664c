// SPDX-License-Identifier: Apache-2.0

// Files of weights and of checkpoints, whole.

#include "executor/training/checkpoint.h"
#include "executor/weights/weights_file.h"
#include "tests/fuzz/target.h"
#include "tests/fuzz/weights.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace arbalest;
  using namespace arbalest::fuzz;
  const std::string path = write("w.safetensors", text(data, size));
  accepted([&] { adopt(WeightsFile(path)); });
  accepted([&] { read_checkpoint(path); });
  accepted([&] {
    const TensorFile file = read_safetensors(path);
    write_safetensors(folder() / "written.safetensors", file);
    if (read_safetensors(folder() / "written.safetensors").tensors.size() != file.tensors.size()) std::abort();
  });
  return 0;
}
