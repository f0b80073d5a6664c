// SPDX-License-Identifier: Apache-2.0

// Rules for names of weights; from the first empty line on, the index of a sharded model next to two sound shards.

#include "executor/weights/weights_map.h"
#include "io/formats/safetensors.h"
#include "tests/fuzz/weights.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace arbalest;
  using namespace arbalest::fuzz;
  static const bool shards = [] {
    const auto tensor = [](const char* name, Shape shape) {
      const auto bytes = size_t(4 * element_count(shape));
      return NamedTensor{name, DataType::Float32, std::move(shape), std::vector<uint8_t>(bytes)};
    };
    write_safetensors(folder() / "1.safetensors",
                      {{tensor("a", {2, 3}), tensor("layer1.0.conv2.weight", {2, 1, 3, 3})}, {}});
    write_safetensors(folder() / "2.safetensors", {{tensor("b", {4}), tensor("fc/kernel", {3, 2})}, {}});
    return true;
  }();
  if (!shards) return 0;
  const std::string_view input = text(data, size);
  const size_t end = std::min(input.find("\n\n"), size);
  const std::string_view rules = input.substr(0, end), index = input.substr(std::min(end + 2, size));
  accepted([&] {
    const WeightsMap map(rules, "rules");
    for (const char* name : {"layer1.0.conv2.weight", "fc/kernel", "", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "a.b.c.d.e"})
      map(name);
  });
  const std::string map = write("rules", rules);
  const std::string path = write("w.safetensors.index.json", index.empty() ? R"({"weight_map": {"a": "1.safetensors",
    "layer1.0.conv2.weight": "1.safetensors", "b": "2.safetensors", "fc/kernel": "2.safetensors"}})"
                                                                           : index);
  accepted([&] { adopt(WeightsFile(path)); });
  accepted([&] { adopt(WeightsFile(path, map)); });
  return 0;
}
