// SPDX-License-Identifier: Apache-2.0
#include "io/photos/shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "base/error.h"
#include "base/files/file.h"
#include "base/in_threads.h"
#include "base/process.h"
#include "io/formats/shard_list.h"
#include "io/images/image_format.h"
#include "io/photos/shard_names.h"

namespace arbalest {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

// The names that each split may have in place of a pattern's {split}.
Names names_of_split(const std::string& split) {
  if (split == "train") return {"train"};
  if (split == "test") return {"test", "val", "validation", "valid"};
  return {"validation", "val", "valid", "test"};
}

Names existing(const std::string& pattern) {
  Names files = files_of(pattern);
  std::error_code error;
  if (!files.empty() && !fs::exists(files.front(), error)) files.clear();
  return files;
}

std::vector<ShardIndex> index_shards(const SourceSpec& spec, const Names& paths) {
  std::vector<ShardIndex> indexes(paths.size());
  in_threads(paths.size(), kFilesAtOnce, [&](size_t i) { indexes[i] = index_shard(paths[i]); });
  const auto is_kept = [](const ShardIndex& index) { return index.not_kept.empty(); };
  if (const auto first = std::find_if_not(indexes.begin(), indexes.end(), is_kept); first != indexes.end()) {
    warn(fmt::format("source '{}': indexes of shards cannot be kept next to them, and are made anew each time: {}",
                     spec.label(), first->not_kept));
  }
  return indexes;
}

}  // namespace

Names shards_of(const SourceSpec& spec, const std::string& split) {
  constexpr std::string_view kSplit = "{split}";
  const std::string* const test = spec.find("test");
  const size_t at = spec.path.find(kSplit);
  if (at != spec.path.npos && test) {
    throw GraphError(
        fmt::format("source '{}': found option 'test' and {} in the pattern, expected one", spec.text, kSplit));
  }
  if (at == spec.path.npos) {
    if (split == "train") return files_of(spec.path);
    return test ? files_of(*test) : Names();
  }
  for (const std::string& name : names_of_split(split)) {
    std::string pattern = spec.path;
    for (size_t each = at; each != pattern.npos; each = pattern.find(kSplit))
      pattern.replace(each, kSplit.size(), name);
    if (Names found = existing(pattern); !found.empty()) return found;
  }
  return {};
}

// The part of a pattern's folder before the first wildcard.
fs::path folder_before_wildcards(const std::string& pattern) {
  const fs::path folder = fs::path(pattern.substr(0, pattern.find_first_of("*?[{"))).parent_path();
  return folder.empty() ? fs::path(".") : folder;
}

// The suggestion for a folder given in place of a pattern.
std::string expected_pattern(std::string folder) {
  while (folder.size() > 1 && folder.ends_with('/')) folder.pop_back();
  return fmt::format("; expected a pattern of archives, such as tar:{}/{{split}}-*.tar", folder);
}

void check_shards(const SourceSpec& spec, const Names& paths) {
  std::error_code is_no_folder;
  if (fs::is_directory(spec.path, is_no_folder)) {
    throw GraphError(fmt::format("source '{}': '{}' is a folder, {}{}", spec.label(), spec.path,
                                 describe_folder(spec.path), expected_pattern(spec.path)));
  }
  if (paths.empty()) {
    const bool named = spec.path.find("{split}") != std::string::npos || spec.split == "train" || spec.find("test");
    if (!named) {
      throw MissingSplit(fmt::format(
          "source '{}': the pattern has shards for training alone; expected ?test=PATTERN, or {{split}} in the "
          "pattern where files have the name of their split",
          spec.label()));
    }
    const std::string* test = spec.split == "train" ? nullptr : spec.find("test");
    const fs::path folder = folder_before_wildcards(test ? *test : spec.path);
    throw MissingSplit(fmt::format("source '{}': found no shards; folder '{}', {}", spec.label(), folder.string(),
                                   describe_folder(folder)));
  }
  std::error_code error;
  Names missing = paths;
  std::erase_if(missing, [&](const std::string& path) { return fs::is_regular_file(path, error); });
  if (missing.empty()) return;
  throw RunError(fmt::format("source '{}': {} of {} shards are missing, the first one is '{}'", spec.label(),
                             missing.size(), paths.size(), missing.front()));
}

namespace {

// Describes what is wrong with shards of one folder and split, by their list; "": nothing.
std::string fault_of(const fs::path& list_path, const PackedShards& list, const std::set<std::string>& found) {
  const auto say = [&](const std::string& what) { return fmt::format("'{}' {}", list_path.string(), what); };
  if (list.packed() < list.samples() && !list.last_has_room()) {
    return say(
        fmt::format("lists {} shard{} with {} of {} samples: packing was not finished; the same 'arbalest data "
                    "pack' again goes on with it",
                    list.shards.size(), list.shards.size() == 1 ? "" : "s", list.packed(), list.samples()));
  }
  constexpr const char* kAgain = "the same 'arbalest data pack' again makes it anew";
  std::set<std::string> listed;
  Names missing;
  for (const PackedShard& shard : list.shards) {
    listed.insert(shard.name);
    std::error_code error;
    const uint64_t bytes = fs::file_size(list_path.parent_path() / shard.name, error);
    if (error) {
      missing.push_back(shard.name);
    } else if (bytes != shard.bytes) {
      return say(
          fmt::format("has '{}' with {} bytes, and the file has {}; {}", shard.name, shard.bytes, bytes, kAgain));
    }
  }
  if (!missing.empty()) {
    return say(fmt::format("lists {} shards, of which {} {} missing, the first one is '{}'; {}", list.shards.size(),
                           missing.size(), missing.size() == 1 ? "is" : "are", missing.front(), kAgain));
  }
  for (const std::string& name : found) {
    if (!listed.contains(name)) {
      return say(fmt::format("lists {} shards, and '{}' is none of them; move it elsewhere", listed.size(), name));
    }
  }
  return "";
}

}  // namespace

void check_lists(const SourceSpec& spec, const Names& paths) {
  std::map<fs::path, std::set<std::string>> found;  // names of shards by their list
  for (const fs::path path : paths) {
    const std::string name = path.filename().string();
    if (const size_t dash = name.rfind('-'); dash != name.npos && name.ends_with(".tar")) {
      found[path.parent_path() / (name.substr(0, dash) + ".shards")].insert(name);
    }
  }
  const std::string* const test = spec.split == "train" ? nullptr : spec.find("test");
  const bool whatever = (test ? *test : spec.path).find_first_of("*[") != std::string::npos;
  for (const auto& [list_path, names] : found) {
    const std::optional<PackedShards> list = read_shard_list(list_path);
    const std::string fault = list ? fault_of(list_path, *list, names) : "";
    if (list && fault.empty() && list->packed() < list->samples()) {
      // Earlier versions did not list samples that were left out after the last shard.
      warn(
          fmt::format("source '{}': '{}' lists {} of {} samples, and its last shard has room: the others could not be "
                      "read; the same 'arbalest data pack' again lists them as left out",
                      spec.label(), list_path.string(), list->packed(), list->samples()));
    }
    if (fault.empty()) continue;
    const std::string message = fmt::format("source '{}': {}", spec.label(), fault);
    if (whatever) throw RunError(message);
    warn(message);
  }
}

Shards open_shards(const SourceSpec& spec, const Names& paths) {
  Shards shards{paths, {}, {}, {}, 0};
  for (ShardIndex& index : index_shards(spec, paths)) {
    for (const auto& [ending, number] : index.others) shards.others[ending] += number;
    shards.dotted += index.dotted;
    shards.samples.insert(shards.samples.end(), index.samples.begin(), index.samples.end());
    shards.ends.push_back(int64_t(shards.samples.size()));
  }
  if (shards.samples.empty()) {
    throw RunError(
        fmt::format("source '{}': {} shard{} without a sample; expected members NAME.jpg, or with another of {}, with "
                    "a NAME.cls each",
                    spec.label(), paths.size(), paths.size() == 1 ? "" : "s", image_endings()));
  }
  return shards;
}

}  // namespace arbalest
