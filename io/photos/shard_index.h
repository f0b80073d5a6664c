#pragma once
// Where the samples of a shard are: a tar archive as WebDataset writes them. Internal to io.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace arbalest {

struct ShardSample {
  uint64_t offset = 0;  // of the image in the archive
  uint32_t size = 0;    // bytes of it
  uint32_t header = 0;  // bytes of its headers, which come before
  int32_t label = 0;
};

struct ShardIndex {
  std::vector<ShardSample> samples;  // in the archive's order
  std::string not_kept;              // why the index is not beside the shard; "": it is
};

// From SHARD.tar.index, where it is there and made of the shard as it is now (its size and time of change); otherwise
// from the shard's headers, and then kept there.
//
// A sample is the members that follow each other and whose names are the same up to the first dot behind the last '/':
// an image (.jpg, .jpeg, .png or .webp) and the number of its class (.cls); what else it has is not read. Throws
// RunError with the archive's offset, where it is malformed, where a name leads out of a folder, or where of image and
// class one is missing or there twice.
ShardIndex index_shard(const std::string& path);

}  // namespace arbalest
