// What a checkpoint says besides its tensors: read, or refused; what is read is written and read as the same.

#include <nlohmann/json.hpp>
#include <string>

#include "executor/training/checkpoint.h"
#include "graph/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using nlohmann::json;
  const json state = json::parse(data, data + size, nullptr, false);
  if (state.is_discarded()) return 0;
  try {
    const json written = arbalest::to_json(arbalest::checkpoint_from_json(state));
    if (arbalest::to_json(arbalest::checkpoint_from_json(written)) != written) __builtin_trap();
  } catch (const json::exception&) {
  } catch (const arbalest::RunError&) {
  }
  return 0;
}
