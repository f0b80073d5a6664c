// SPDX-License-Identifier: Apache-2.0
#pragma once
// The batch that a called model was exported for. It is kept in the place of the model's nodes, since errors about any
// of them should tell it.

#include <cstdint>
#include <string>
#include <string_view>

namespace arbalest {

// The file of the place of nodes from `file`, which states inputs of so many samples: "m.onnx (exported for batches of
// 1)".
std::string exported_file(const std::string& file, int64_t batch);

// The batch in a result of exported_file(); 0 for any other text.
int64_t exported_batch(std::string_view file);

}  // namespace arbalest
