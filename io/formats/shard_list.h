// SPDX-License-Identifier: Apache-2.0
#pragma once
// The list of a split's packed shards, DIR/SPLIT.shards, which 'arbalest data pack' keeps next to its archives: JSON
// lines, first what was packed and how, then each finished archive.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace arbalest {

struct PackedShard {
  std::string name;     // "train-0000.tar"
  int64_t samples = 0;  // in it
  int64_t next = 0;     // position, in the order of packing, after its last sample
  int64_t skipped = 0;  // samples that were left out on the way there, since the shard before
  uint64_t bytes = 0;
  uint32_t crc32 = 0;
};

// The settings of packing; "samples" is how many the split has.
using PackSettings = nlohmann::ordered_json;

struct PackedShards {
  PackSettings settings;
  std::vector<PackedShard> shards;

  int64_t samples() const;  // of the split, with those that are not packed yet
  int64_t packed() const { return shards.empty() ? 0 : shards.back().next; }  // or left out
  // Whether the last shard has room for many more samples. Packing ends a shard if the next sample does not fit, or
  // at the end of the split, so that all samples after this one were left out.
  bool last_has_room() const;
};

// None if there is no such file. Throws RunError if it is malformed.
std::optional<PackedShards> read_shard_list(const std::filesystem::path& path);

// The whole file, as it is read back.
std::string shard_list_text(const PackedShards& list);

}  // namespace arbalest
