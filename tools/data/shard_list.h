#pragma once
// The list of a split's finished shards: SPLIT.shards, JSON lines.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
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

// What was packed and how. A list of other settings is another data set's.
using PackSettings = nlohmann::ordered_json;

class ShardList {
 public:
  // Reads the list where there is one. Throws GraphError where its shards have other settings, and where there is none
  // beside archives of the split's names, which would be replaced; RunError where it is malformed.
  ShardList(const std::filesystem::path& folder, const std::string& split, const PackSettings& settings);

  // Drops the first shard that is not in the folder as listed, by size and checksum, and those after it. Returns how
  // many are left. Throws RunError where a file cannot be read.
  int64_t check();
  // Writes the list where it has no shard yet, so that the first one is known to be of it. Throws RunError.
  void begin();
  // Adds one and writes the list. Throws RunError.
  void add(const PackedShard& shard);

  const std::vector<PackedShard>& shards() const { return shards_; }

 private:
  void refuse_others(const std::string& split) const;
  void write() const;

  std::filesystem::path folder_, path_;
  PackSettings settings_;
  std::vector<PackedShard> shards_;
};

}  // namespace arbalest
