// SPDX-License-Identifier: Apache-2.0
#pragma once
// The index of a shard: where its samples are in a tar archive as WebDataset writes them. Internal to io.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/sources/source.h"

namespace arbalest {

struct ShardSample {
  uint64_t offset = 0;  // of the image in the archive
  uint32_t size = 0;    // bytes of it
  uint32_t header = 0;  // bytes of its headers, which come before
  int32_t label = 0;
};

struct ShardIndex {
  std::vector<ShardSample> samples;  // in the archive's order
  PassedOver others;                 // members that are no part of a sample
  int64_t dotted = 0;                // samples with dots in their names
  std::string not_kept;              // why the index is not next to the shard; "": it is
};

// From SHARD.tar.index, if it is there and made of the shard as it is now (its size and time of change); otherwise
// from the shard's headers, and then kept there.
//
// A sample is an image (is_image_name()) and the number of its class (.cls) whose names are the same up to their last
// dot. They are looked for among members that follow each other and whose names are the same up to the first dot after
// the last '/', which WebDataset takes for one sample. NAME.jpg and NAME.cls must both be there; there may be others,
// such as NAME.seg.png. Names with dots are samples if both are there; if all names of
// such a group have dots, and one is a sample, all have to be. Throws RunError with the archive's offset, if it is
// malformed, if a name leads out of a folder, or if of image and class one is missing or there twice.
ShardIndex index_shard(const std::string& path);

}  // namespace arbalest
