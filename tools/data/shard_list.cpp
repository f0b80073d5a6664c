#include "tools/data/shard_list.h"

#include <fmt/format.h>

#include <charconv>
#include <fstream>

#include "graph/error.h"
#include "io/formats/atomic_file.h"
#include "tools/data/tar_writer.h"

namespace arbalest {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string hexadecimal(uint32_t checksum) {
  return fmt::format("{:08x}", checksum);
}

Json to_json(const PackedShard& shard) {
  return {{"shard", shard.name},      {"samples", shard.samples}, {"next", shard.next},
          {"skipped", shard.skipped}, {"bytes", shard.bytes},     {"crc32", hexadecimal(shard.crc32)}};
}

PackedShard shard_of(const Json& json) {
  PackedShard shard;
  json.at("shard").get_to(shard.name);
  json.at("samples").get_to(shard.samples);
  json.at("next").get_to(shard.next);
  json.at("skipped").get_to(shard.skipped);
  json.at("bytes").get_to(shard.bytes);
  const std::string checksum = json.at("crc32").get<std::string>();
  std::from_chars(checksum.data(), checksum.data() + checksum.size(), shard.crc32, 16);
  return shard;
}

}  // namespace

ShardList::ShardList(const fs::path& folder, const std::string& split, const PackSettings& settings)
    : folder_(folder), path_(folder / (split + ".shards")), settings_(settings) {
  std::ifstream file(path_);
  if (!file) {
    refuse_others(split);
    return;
  }
  int number = 0;
  Json stated = settings_;
  try {
    for (std::string line; std::getline(file, line);) {
      const Json json = Json::parse(line);
      if (++number > 1) {
        shards_.push_back(shard_of(json));
      } else {
        stated = json;
      }
    }
  } catch (const Json::exception& error) {
    throw RunError(fmt::format("{}:{}: expected a line of JSON as 'arbalest data pack' writes them: {}", path_.string(),
                               number + 1, error.what()));
  }
  if (shards_.empty() || stated == settings_) return;
  throw GraphError(fmt::format("{}: these shards were packed with {}, expected {}; give another folder", path_.string(),
                               stated.dump(), settings_.dump()));
}

// Archives that somebody else has put there may be all that there is of a data set, and the source's own.
void ShardList::refuse_others(const std::string& split) const {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(split + "-") || !name.ends_with(".tar")) continue;
    throw GraphError(
        fmt::format("{}: has {}, and no {}, which 'arbalest data pack' writes beside its archives; give "
                    "another folder",
                    folder_.string(), name, path_.filename().string()));
  }
}

int64_t ShardList::check() {
  size_t sound = 0;
  for (; sound < shards_.size(); ++sound) {
    const PackedShard& shard = shards_[sound];
    std::error_code error;
    const fs::path path = folder_ / shard.name;
    if (fs::file_size(path, error) != shard.bytes || error || checksum_of(path) != shard.crc32) break;
  }
  shards_.resize(sound);
  return int64_t(sound);
}

void ShardList::begin() {
  if (shards_.empty()) write();
}

void ShardList::add(const PackedShard& shard) {
  shards_.push_back(shard);
  write();
}

void ShardList::write() const {
  std::string text = settings_.dump() + "\n";
  for (const PackedShard& each : shards_) text += to_json(each).dump() + "\n";
  AtomicFile file(path_);
  file.write(text);
  file.commit();
}

}  // namespace arbalest
