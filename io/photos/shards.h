// SPDX-License-Identifier: Apache-2.0
#pragma once
// The shards of a tar source, and the samples in them. Internal to io.

#include <string>
#include <vector>

#include "io/photos/shard_index.h"
#include "io/sources/source.h"

namespace arbalest {

// The samples of shards one after the other.
struct Shards {
  std::vector<std::string> paths;
  std::vector<ShardSample> samples;
  std::vector<int64_t> ends;  // samples up to each shard's end
  PassedOver others;          // members that are no part of a sample
  int64_t dotted = 0;         // samples with dots in their names
};

// The files of a split: those that the source's pattern, or its option `test`, names; none if it has no such split.
// Throws GraphError for patterns that are wrong.
std::vector<std::string> shards_of(const SourceSpec& spec, const std::string& split);

// Throws GraphError if the pattern cannot have the split, RunError if shards of it are missing.
void check_shards(const SourceSpec& spec, const std::vector<std::string>& paths);

// Compares the shards with the lists that 'arbalest data pack' keeps in their folder (DIR/SPLIT.shards). If a pattern
// has wildcards, throws RunError if packing was not finished or if a shard is missing, not as listed, or not listed. If
// it names shards one by one, warns instead.
void check_lists(const SourceSpec& spec, const std::vector<std::string>& paths);

// Throws RunError as index_shard() does, and if there is no sample.
Shards open_shards(const SourceSpec& spec, const std::vector<std::string>& paths);

}  // namespace arbalest
