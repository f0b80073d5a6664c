// SPDX-License-Identifier: Apache-2.0
#include "tools/data/shard_list.h"

#include <fmt/format.h>

#include <optional>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "tools/data/tar_writer.h"

namespace arbalest {

namespace fs = std::filesystem;

ShardList::ShardList(const fs::path& folder, const std::string& split, const PackSettings& settings)
    : folder_(folder), path_(folder / (split + ".shards")), list_{settings, {}} {
  std::optional<PackedShards> found = read_shard_list(path_);
  if (!found) refuse_others(split);
  if (!found || found->shards.empty()) return;
  if (found->settings != settings) {
    throw GraphError(fmt::format("{}: these shards were packed with {}, expected {}; give another folder",
                                 path_.string(), found->settings.dump(), settings.dump()));
  }
  list_ = std::move(*found);
}

// Archives that somebody else has put there may be all that there is of a data set, and the source's own.
void ShardList::refuse_others(const std::string& split) const {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(split + "-") || !name.ends_with(".tar")) continue;
    throw GraphError(
        fmt::format("{}: has {}, and no {}, which 'arbalest data pack' writes next to its archives; give "
                    "another folder",
                    folder_.string(), name, path_.filename().string()));
  }
}

int64_t ShardList::check() {
  size_t sound = 0;
  for (; sound < shards().size(); ++sound) {
    const PackedShard& shard = shards()[sound];
    std::error_code error;
    const fs::path path = folder_ / shard.name;
    if (fs::file_size(path, error) != shard.bytes || error || checksum_of(path) != shard.crc32) break;
  }
  list_.shards.resize(sound);
  return int64_t(sound);
}

void ShardList::begin() {
  if (shards().empty()) write();
}

void ShardList::add(const PackedShard& shard) {
  list_.shards.push_back(shard);
  write();
}

void ShardList::end(int64_t next, int64_t skipped) {
  list_.shards.back().next = next;
  list_.shards.back().skipped += skipped;
  write();
}

void ShardList::write() const {
  AtomicFile file(path_);
  file.write(shard_list_text(list_));
  file.commit();
}

}  // namespace arbalest
