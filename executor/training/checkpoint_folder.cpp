// SPDX-License-Identifier: Apache-2.0
#include "executor/training/checkpoint_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/folder.h"
#include "base/process.h"
#include "base/setting.h"
#include "executor/world/agreement.h"

namespace arbalest {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kPrefix = "checkpoint-", kEnding = ".safetensors";
constexpr std::string_view kMark = ".checkpoint.shared-";  // see CheckpointFolder::mark()
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

// The name of rank 0's file to which a part of this name belongs; "": the name is no part's.
std::string whole_of(const std::string& name) {
  const std::string whole = whole_path(name).string();
  return iteration_of(whole) ? whole : "";
}

bool is_first(const Ranks* ranks) {
  return !ranks || ranks->first();
}

struct Newest {
  std::shared_ptr<const CheckpointFile> file;  // nullptr: there is none
  std::vector<std::string> faults;             // of newer ones, which cannot be read
};

using Reads = std::function<bool(size_t rank)>;

// The parts that a rank of n reads, every n-th: if as many ranks have written them, its own.
Reads share_of(const Ranks* ranks) {
  if (!ranks) return {};
  return [ranks](size_t rank) { return rank % size_t(ranks->size()) == size_t(ranks->rank()); };
}

// The checkpoint that rank 0 has read, but for its tensors, for ranks to compare and for one that comes back; "": none.
std::string state_of_first(Ranks* ranks, const CheckpointFile* file) {
  if (!ranks) return "";
  const std::string own = file ? text_of(file->checkpoint) : "", told = first_of(ranks, ranks->first() ? own : "");
  if (!told.empty() && file && own != told) {
    throw RunError(fmt::format("{}: what {} reads there is another checkpoint", file->path, ranks->name(0)));
  }
  return told;
}

// The first checkpoint that can be read and is wanted, of rank 0's `paths`.
Newest newest_of(const fs::path& folder, const std::vector<fs::path>& paths, Ranks* ranks, const Reads& reads,
                 const std::function<bool(const CheckpointFile&)>& wanted) {
  const bool returns = ranks && ranks->returns();
  Newest newest;
  for (size_t i = 0;; ++i) {
    const fs::path told = first_of(ranks, is_first(ranks) && i < paths.size() ? paths[i].string() : "");
    if (told.empty()) return newest;
    const fs::path path = is_first(ranks) || folder.empty() ? told : folder / told.filename();
    auto file = std::make_shared<CheckpointFile>();
    std::string fault;
    const auto keep_fault = [&](const std::function<void()>& step) {
      try {
        step();
      } catch (const RunError& error) {
        fault = is_first(ranks) ? error.what() : fmt::format("{}: {}", ranks->name(ranks->rank()), error.what());
      }
    };
    if (!returns) keep_fault([&] { *file = read_checkpoint(path, reads); });
    std::string state;
    keep_fault([&] { state = state_of_first(ranks, fault.empty() && !returns ? file.get() : nullptr); });
    fault = first_of(ranks, fault);
    fault = first_of(ranks, is_first(ranks) ? fault : "");  // a rank that comes back no longer knows its own
    if (!fault.empty()) newest.faults.push_back(fault);
    if (!fault.empty() || largest_of(ranks, returns || wanted(*file) ? 0 : 1) > 0) continue;
    if (returns) *file = {path.string(), checkpoint_from_json(nlohmann::json::parse(state)), {}, {}};
    newest.file = std::move(file);
    return newest;
  }
}

bool any_file(const CheckpointFile&) {
  return true;
}

void tell_of(const std::vector<std::string>& faults, const Ranks* ranks) {
  if (!is_first(ranks)) return;
  for (const std::string& fault : faults) warn(fmt::format("{}; it is left out", fault));
}

std::shared_ptr<const CheckpointFile> file_of(Newest newest, const fs::path& folder, const Ranks* ranks) {
  if (!newest.file && !newest.faults.empty()) {
    throw GraphError(fmt::format(
        "{}: {} checkpoint{} there, and none can be read, so that no run goes on: {}; {} with another folder starts "
        "afresh, and so does this one once they are moved away with their parts",
        folder.string(), newest.faults.size(), newest.faults.size() == 1 ? " is" : "s are",
        fmt::join(newest.faults, "; "), name_of(SettingKey::Checkpoint)));
  }
  tell_of(newest.faults, ranks);
  return std::move(newest.file);
}

// Calls `each` with the path and name of each file. Returns why the folder cannot be listed, if so.
std::error_code list(const fs::path& folder, const std::function<void(const fs::path&, const std::string&)>& each) {
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    each(entry->path(), entry->path().filename().string());
  }
  return error == std::errc::no_such_file_or_directory ? std::error_code() : error;
}

// Adds the checkpoints to `found`. Returns as the function above does.
std::error_code list(const fs::path& folder, std::map<int64_t, fs::path, std::greater<>>& found) {
  return list(folder, [&](const fs::path& path, const std::string& name) {
    if (const auto iteration = iteration_of(name)) found.emplace(*iteration, path);
  });
}

// Removes parts up to iteration `latest` that no checkpoint names. A checkpoint that cannot be read, or looked for,
// keeps its parts.
void remove_parts_of_none(const fs::path& folder, int64_t latest) {
  std::map<std::string, std::vector<fs::path>> parts;  // by the checkpoint's name
  list(folder, [&](const fs::path& path, const std::string& name) {
    const std::string whole = whole_of(name);
    if (!whole.empty() && *iteration_of(whole) <= latest) parts[whole].push_back(path);
  });
  std::error_code ignored;
  for (const auto& [name, paths] : parts) {
    std::set<std::string> named;
    const fs::path whole = folder / name;
    if (fs::status(whole, ignored).type() != fs::file_type::not_found) {
      try {
        const CheckpointParts kept = parts_named_in(whole);
        for (size_t rank = 1; rank <= kept.of_ranks.size(); ++rank) {
          named.insert(part_path(whole, kept.tag, rank).filename().string());
        }
      } catch (const RunError&) {
        continue;
      }
    }
    for (const fs::path& path : paths) {
      if (!named.contains(path.filename().string())) fs::remove(path, ignored);
    }
  }
}

// Removes temporary files of checkpoints up to iteration `latest`, which processes left when they were killed.
void remove_unfinished(const fs::path& folder, int64_t latest) {
  constexpr std::string_view kTemporary = ".tmp-";
  std::set<fs::path> targets;
  list(folder, [&](const fs::path&, const std::string& name) {
    const size_t at = name.find(kTemporary);
    if (!name.starts_with('.') || at == name.npos) return;
    const std::string target = name.substr(1, at - 1), whole = whole_of(target);
    const auto iteration = iteration_of(whole.empty() ? target : whole);
    if (iteration && *iteration <= latest) targets.insert(folder / target);
  });
  for (const fs::path& target : targets) remove_abandoned(target);
}

// Removes the files that killed runs left for other ranks.
void remove_marks(const fs::path& folder) {
  std::vector<fs::path> marks;
  list(folder, [&](const fs::path& path, const std::string& name) {
    if (name.starts_with(kMark)) marks.push_back(path);
  });
  std::error_code ignored;
  for (const fs::path& mark : marks) fs::remove(mark, ignored);
}

// Makes a network file system ask its server what the folder has now.
void look_anew(const fs::path& folder) {
  const int descriptor = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor >= 0) close(descriptor);
}

// Why this rank cannot write its parts where rank 0 has left the file `mark`; "": it can.
std::string why_apart(const std::string& folder, const std::string& mark, const Ranks& ranks,
                      std::chrono::seconds patience) {
  const std::string own = ranks.name(ranks.rank());
  if (!comes_to_be(fs::path(folder) / mark, patience)) {
    std::error_code unknown;
    return fmt::format(
        "{}: {} does not see in '{}' what {} has left in its folder; expected one folder that all ranks share, because "
        "each writes a part of a checkpoint",
        set_to(SettingKey::Checkpoint, folder), own, fs::absolute(folder, unknown).string(), ranks.name(0));
  }
  try {
    const AtomicFile made_and_gone(
        part_path(fs::path(folder) / name_of_iteration(0), unforeseen_digits(), size_t(ranks.rank())));
  } catch (const RunError& error) {
    return fmt::format("{}: {} cannot write its parts of checkpoints there: {}", set_to(SettingKey::Checkpoint, folder),
                       own, error.what());
  }
  return "";
}

}  // namespace

CheckpointFolder::CheckpointFolder(const std::string& folder, bool holds) : folder_(folder) {
  if (!holds) return;
  make_folders(folder);
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    throw RunError(fmt::format("{}: no folder that can be written to: {}", folder, std::strerror(errno)));
  }
  try {
    held_.emplace(folder_ / "checkpoint");
  } catch (const OutputInUse& error) {
    throw RunError(fmt::format("{}: another run keeps its checkpoints here: {}", folder, error.holder()));
  }
  remove_marks(folder_);
  remove_unfinished(folder_, INT64_MAX);
  std::map<int64_t, fs::path, std::greater<>> found;
  list(folder_, found);
  if (!found.empty()) remove_parts_of_none(folder_, found.begin()->first);
}

CheckpointFolder::~CheckpointFolder() {
  std::error_code ignored;
  if (!mark_.empty()) fs::remove(mark_, ignored);
}

std::string CheckpointFolder::mark() {
  mark_ = folder_ / (std::string(kMark) + unforeseen_digits());
  AtomicFile(mark_).commit();
  return mark_.filename().string();
}

std::shared_ptr<const CheckpointFolder> open_checkpoints(const std::string& folder, Ranks* ranks,
                                                         std::chrono::seconds patience) {
  std::shared_ptr<const CheckpointFolder> opened;
  std::string mark;
  if (!folder.empty() && is_first(ranks)) {
    const auto held = std::make_shared<CheckpointFolder>(folder);
    if (ranks) mark = held->mark();
    opened = held;
  } else if (!folder.empty()) {
    opened = std::make_shared<const CheckpointFolder>(folder, false);
  }
  mark = first_of(ranks, std::move(mark));
  const std::string apart = first_of(ranks, mark.empty() || !opened ? "" : why_apart(folder, mark, *ranks, patience));
  if (!apart.empty()) throw GraphError(apart);
  return opened;
}

bool comes_to_be(const fs::path& path, std::chrono::seconds patience) {
  constexpr auto kLook = std::chrono::milliseconds(50);
  constexpr auto kLong = std::chrono::seconds(5);
  using Clock = std::chrono::steady_clock;
  bool told = false;
  std::error_code unknown;
  for (const auto began = Clock::now();;) {
    const fs::path folder = fs::absolute(path, unknown).parent_path();
    look_anew(folder.parent_path());
    look_anew(folder);
    if (fs::exists(path, unknown)) return true;
    const auto waited = Clock::now() - began;
    if (waited >= patience) return false;
    if (waited >= kLong && !std::exchange(told, true))
      warn(fmt::format("{}: not there so far; it waits", path.string()));
    std::this_thread::sleep_for(kLook);
  }
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
  remove_parts_of_none(folder_, latest);
  remove_unfinished(folder_, latest);
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
  throw GraphError(fmt::format(
      "{}: the folder has checkpoints of a run, the latest of which is '{}'; {} goes on with it, another "
      "folder starts afresh",
      set_to(SettingKey::Checkpoint, folder.string()), there.front().filename().string(), name_of(SettingKey::Resume)));
}

void remove_after(const fs::path& folder, int64_t iteration) {
  std::vector<fs::path> later;
  list(folder, [&](const fs::path& path, const std::string& name) {
    const std::string whole = whole_of(name);
    if (iteration_of(whole.empty() ? name : whole).value_or(0) > iteration) later.push_back(path);
  });
  std::error_code ignored;  // as in prune()
  for (const fs::path& path : later) fs::remove(path, ignored);
}

std::shared_ptr<const CheckpointFile> newest_checkpoint(const fs::path& folder, Ranks* ranks) {
  const std::vector<fs::path> paths = is_first(ranks) ? checkpoints_in(folder) : std::vector<fs::path>();
  return file_of(newest_of(folder, paths, ranks, share_of(ranks), any_file), folder, ranks);
}

std::shared_ptr<const CheckpointFile> newest_of_first(const fs::path& folder) {
  const auto no_part = [](size_t) { return false; };
  return file_of(newest_of(folder, checkpoints_in(folder), nullptr, no_part, any_file), folder, nullptr);
}

std::shared_ptr<const CheckpointFile> newest_finite_checkpoint(const fs::path& folder, int64_t before, Ranks* ranks) {
  std::vector<fs::path> paths = is_first(ranks) ? checkpoints_in(folder) : std::vector<fs::path>();
  std::erase_if(
      paths, [&](const fs::path& path) { return iteration_of(path.filename().string()).value_or(before) >= before; });
  Newest newest = newest_of(folder, paths, ranks, share_of(ranks), is_finite);
  tell_of(newest.faults, ranks);
  return std::move(newest.file);
}

std::shared_ptr<const CheckpointFile> checkpoint_to_go_back_to(const fs::path& folder, int64_t before,
                                                               int64_t gone_back_to, Ranks* ranks) {
  auto file = newest_finite_checkpoint(folder, before, ranks);
  if (!file) return nullptr;
  const int64_t found = file->checkpoint.position.iteration;
  if (largest_of(ranks, is_first(ranks) && found == gone_back_to ? 1 : 0) == 0) return file;
  auto earlier = newest_finite_checkpoint(folder, found, ranks);
  return earlier ? earlier : file;
}

}  // namespace arbalest
