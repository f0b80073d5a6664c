#include "io/photos/shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "graph/error.h"
#include "graph/in_threads.h"
#include "graph/plain_message.h"
#include "io/formats/file.h"
#include "io/photos/shard_names.h"

namespace arbalest {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

// Where a pattern has {split}, the names that each split may have in its place.
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
    warn(fmt::format("source '{}': indexes of shards cannot be kept beside them, and are made anew each time: {}",
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

// The folder of a pattern as far as it is the same for all files.
fs::path folder_before_wildcards(const std::string& pattern) {
  const fs::path folder = fs::path(pattern.substr(0, pattern.find_first_of("*?[{"))).parent_path();
  return folder.empty() ? fs::path(".") : folder;
}

// Where a folder was given.
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

Shards open_shards(const SourceSpec& spec, const Names& paths) {
  Shards shards{paths, {}, {}};
  for (ShardIndex& index : index_shards(spec, paths)) {
    shards.samples.insert(shards.samples.end(), index.samples.begin(), index.samples.end());
    shards.ends.push_back(int64_t(shards.samples.size()));
  }
  if (shards.samples.empty()) {
    throw RunError(fmt::format(
        "source '{}': {} shard{} without a sample; expected members NAME.jpg, .jpeg, .png or .webp with a NAME.cls "
        "each",
        spec.label(), paths.size(), paths.size() == 1 ? "" : "s"));
  }
  return shards;
}

}  // namespace arbalest
