// SPDX-License-Identifier: Apache-2.0
#include "executor/training/checkpoint_folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <system_error>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/process.h"
#include "executor/world/agreement.h"

namespace arbalest {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPrefix = "checkpoint-", kEnding = ".safetensors";
constexpr size_t kDigits = 12;

std::string name_of_iteration(int64_t iteration) {
  return fmt::format("{}{:0{}}{}", kPrefix, iteration, kDigits, kEnding);
}

std::optional<int64_t> iteration_of(const std::string& name) {
  if (!name.starts_with(kPrefix) || !name.ends_with(kEnding)) return std::nullopt;
  if (name.size() != kPrefix.size() + kDigits + kEnding.size()) return std::nullopt;
  const std::string digits = name.substr(kPrefix.size(), kDigits);
  if (digits.find_first_not_of("0123456789") != digits.npos) return std::nullopt;
  return std::stoll(digits);
}

struct Newest {
  std::shared_ptr<const CheckpointFile> file;  // nullptr: there is none
  std::vector<std::string> faults;             // of newer ones, which cannot be read
};

// The first checkpoint that can be read and is wanted.
Newest newest_of(const std::vector<fs::path>& paths, const std::function<bool(const CheckpointFile&)>& wanted) {
  Newest newest;
  for (const fs::path& path : paths) {
    try {
      auto file = std::make_shared<CheckpointFile>(read_checkpoint(path));
      if (!wanted(*file)) continue;
      newest.file = std::move(file);
      break;
    } catch (const RunError& error) {
      newest.faults.emplace_back(error.what());
    }
  }
  return newest;
}

void tell_of(const std::vector<std::string>& faults) {
  for (const std::string& fault : faults) warn(fmt::format("{}; it is left out", fault));
}

// Adds the checkpoints to `found`. Returns why the folder cannot be listed, if so.
std::error_code list(const fs::path& folder, std::map<int64_t, fs::path, std::greater<>>& found) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (const auto iteration = iteration_of(entry->path().filename().string())) {
      found.emplace(*iteration, entry->path());
    }
  }
  return error == std::errc::no_such_file_or_directory ? std::error_code() : error;
}

// Removes the temporary files of checkpoints that a killed run was writing.
void remove_unfinished(const fs::path& folder) {
  constexpr std::string_view kTemporary = ".tmp-";
  std::vector<fs::path> targets;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const size_t at = name.find(kTemporary);
    if (name.empty() || name[0] != '.' || at == name.npos || !iteration_of(name.substr(1, at - 1))) continue;
    targets.push_back(folder / name.substr(1, at - 1));
  }
  for (const fs::path& target : targets) remove_abandoned(target);
}

}  // namespace

CheckpointFolder::CheckpointFolder(const std::string& folder) : folder_(folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw RunError(fmt::format("{}: the folder cannot be made: {}", folder, error.message()));
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    throw RunError(fmt::format("{}: no folder that can be written to: {}", folder, std::strerror(errno)));
  }
  try {
    held_.emplace(folder_ / "checkpoint");
  } catch (const OutputInUse& error) {
    throw RunError(fmt::format("{}: another run keeps its checkpoints here: {}", folder, error.holder()));
  }
  remove_unfinished(folder_);
}

fs::path CheckpointFolder::path_of(int64_t iteration) const {
  return folder_ / name_of_iteration(iteration);
}

void CheckpointFolder::prune(int64_t latest, int64_t keep, int64_t best) const {
  int64_t kept = 0;
  std::map<int64_t, fs::path, std::greater<>> found;
  list(folder_, found);  // a folder that cannot be listed keeps what it has
  for (const auto& [iteration, path] : found) {
    if (iteration > latest || kept++ < keep || iteration == best) continue;
    std::error_code ignored;  // what cannot be removed is in nobody's way
    fs::remove(path, ignored);
  }
}

std::vector<fs::path> checkpoints_in(const fs::path& folder) {
  std::map<int64_t, fs::path, std::greater<>> found;
  if (const std::error_code error = list(folder, found)) {
    throw RunError(fmt::format("{}: the folder cannot be listed: {}", folder.string(), error.message()));
  }
  std::vector<fs::path> paths;
  for (const auto& [iteration, path] : found) paths.push_back(path);
  return paths;
}

void check_has_none(const fs::path& folder) {
  const std::vector<fs::path> there = checkpoints_in(folder);
  if (there.empty()) return;
  throw GraphError(
      fmt::format("--checkpoint {}: the folder has checkpoints of a run, the latest of which is '{}'; "
                  "--resume goes on with it, another folder starts afresh",
                  folder.string(), there.front().filename().string()));
}

void remove_after(const fs::path& folder, int64_t iteration) {
  for (const fs::path& path : checkpoints_in(folder)) {
    std::error_code ignored;  // as in prune()
    if (iteration_of(path.filename().string()).value_or(0) > iteration) fs::remove(path, ignored);
  }
}

std::shared_ptr<const CheckpointFile> newest_checkpoint(const fs::path& folder) {
  const Newest newest = newest_of(checkpoints_in(folder), [](const CheckpointFile&) { return true; });
  if (!newest.file && !newest.faults.empty()) {
    throw GraphError(fmt::format(
        "{}: {} checkpoint{} there, and none can be read, so that no run goes on: {}; --checkpoint with another folder "
        "starts afresh, and so does this one once they are moved away",
        folder.string(), newest.faults.size(), newest.faults.size() == 1 ? " is" : "s are",
        fmt::join(newest.faults, "; ")));
  }
  tell_of(newest.faults);
  return newest.file;
}

std::shared_ptr<const CheckpointFile> found_by_first(
    Ranks* ranks, const std::function<std::shared_ptr<const CheckpointFile>()>& find) {
  const bool looks = !ranks || ranks->first();
  std::shared_ptr<const CheckpointFile> file = looks ? find() : nullptr;
  const std::string path = first_of(ranks, file ? file->path : "");
  if (looks || path.empty()) return file;
  return std::make_shared<const CheckpointFile>(read_checkpoint(path));
}

std::shared_ptr<const CheckpointFile> newest_finite_checkpoint(const fs::path& folder, int64_t before) {
  std::vector<fs::path> paths = checkpoints_in(folder);
  std::erase_if(
      paths, [&](const fs::path& path) { return iteration_of(path.filename().string()).value_or(before) >= before; });
  const Newest newest = newest_of(paths, is_finite);
  tell_of(newest.faults);
  return newest.file;
}

}  // namespace arbalest
