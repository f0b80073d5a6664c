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

// What the source's pattern, or its option `test`, names as a split; none where it has no such split. Throws GraphError
// for patterns that are wrong.
std::vector<std::string> shards_of(const SourceSpec& spec, const std::string& split);

// Throws GraphError where the pattern cannot have the split, RunError where shards of it are missing.
void check_shards(const SourceSpec& spec, const std::vector<std::string>& paths);

// Holds the shards against the lists that 'arbalest data pack' keeps beside them (DIR/SPLIT.shards). Where a pattern
// names whatever there is, throws RunError where packing was not finished, where a shard is missing or is not as
// listed, and where one is not listed; where it names shards one by one, warns.
void check_lists(const SourceSpec& spec, const std::vector<std::string>& paths);

// Throws RunError as index_shard() does, and where there is no sample.
Shards open_shards(const SourceSpec& spec, const std::vector<std::string>& paths);

}  // namespace arbalest
