// SPDX-License-Identifier: Apache-2.0
#include "io/formats/shard_list.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/files/file.h"
#include "base/number.h"

namespace arbalest {
namespace {

nlohmann::ordered_json to_json(const PackedShard& shard) {
  return {{"shard", shard.name},      {"samples", shard.samples}, {"next", shard.next},
          {"skipped", shard.skipped}, {"bytes", shard.bytes},     {"crc32", fmt::format("{:08x}", shard.crc32)}};
}

PackedShard shard_of(const nlohmann::ordered_json& json) {
  PackedShard shard;
  json.at("shard").get_to(shard.name);
  json.at("samples").get_to(shard.samples);
  json.at("next").get_to(shard.next);
  json.at("skipped").get_to(shard.skipped);
  json.at("bytes").get_to(shard.bytes);
  shard.crc32 = read_number<uint32_t>(json.at("crc32").get<std::string>(), 16).value_or(0);
  return shard;
}

}  // namespace

int64_t PackedShards::samples() const {
  const auto stated = settings.is_object() ? settings.find("samples") : settings.end();
  return stated != settings.end() && stated->is_number_integer() ? stated->get<int64_t>() : 0;
}

bool PackedShards::last_has_room() const {
  constexpr uint64_t kMany = 16;
  const auto stated = settings.is_object() ? settings.find("shard_mib") : settings.end();
  if (stated == settings.end() || !stated->is_number_unsigned() || shards.empty()) return false;
  const PackedShard& last = shards.back();
  const uint64_t most = stated->get<uint32_t>() * (uint64_t{1} << 20);
  return last.samples > 0 && last.bytes < most && (most - last.bytes) / kMany > last.bytes / uint64_t(last.samples);
}

std::optional<PackedShards> read_shard_list(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return std::nullopt;
  PackedShards list;
  int number = 0;
  try {
    for (const std::string& line : read_lines(path)) {
      ++number;
      nlohmann::ordered_json json = nlohmann::ordered_json::parse(line);
      if (number == 1) {
        list.settings = std::move(json);
      } else {
        list.shards.push_back(shard_of(json));
      }
    }
  } catch (const nlohmann::ordered_json::exception& fault) {
    throw RunError(fmt::format("{}:{}: expected a line of JSON as 'arbalest data pack' writes them: {}", path.string(),
                               number, fault.what()));
  }
  return list;
}

std::string shard_list_text(const PackedShards& list) {
  std::string text = list.settings.dump() + "\n";
  for (const PackedShard& shard : list.shards) text += to_json(shard).dump() + "\n";
  return text;
}

}  // namespace arbalest
