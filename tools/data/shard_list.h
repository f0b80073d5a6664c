// SPDX-License-Identifier: Apache-2.0
#pragma once
// The list of a split's finished shards as packing makes it.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "io/formats/shard_list.h"

namespace arbalest {

class ShardList {
 public:
  // Reads the list if there is one. Throws GraphError if its shards have other settings, or if there is none
  // next to archives of the split's names, which would be replaced; RunError if it is malformed.
  ShardList(const std::filesystem::path& folder, const std::string& split, const PackSettings& settings);

  // Drops the first shard that is not in the folder as listed, by size and checksum, and those after it. Returns how
  // many are left. Throws RunError if a file cannot be read.
  int64_t check();
  // Writes the list if it has no shard yet, so that the first one is known to be of it. Throws RunError.
  void begin();
  // Adds one and writes the list. Throws RunError.
  void add(const PackedShard& shard);
  // Says that the samples after the last shard were left out, `skipped` of them: packing is finished. Throws RunError.
  void end(int64_t next, int64_t skipped);

  const std::vector<PackedShard>& shards() const { return list_.shards; }

 private:
  void refuse_others(const std::string& split) const;
  void write() const;

  std::filesystem::path folder_, path_;
  PackedShards list_;
};

}  // namespace arbalest
