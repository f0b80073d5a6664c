// SPDX-License-Identifier: Apache-2.0
#include "io/photos/folder_listing.h"

#include <dirent.h>
#include <fcntl.h>
#include <strings.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <set>
#include <utility>

#include "base/files/file.h"
#include "io/images/image_format.h"
#include "io/sources/passed_over.h"

namespace arbalest {
namespace {

std::string joined(const std::string& folder, const std::string& name) {
  return folder.empty() || name.empty() ? folder + name : folder + "/" + name;
}

using Identities = std::set<std::pair<dev_t, ino_t>>;  // of folders, independently of their names

// Adds the folder and those above it, to the root of the file system.
void add_with_above(std::string folder, Identities& known) {
  struct stat status = {};
  for (; stat(folder.c_str(), &status) == 0; folder += "/..") {
    if (!known.emplace(status.st_dev, status.st_ino).second) return;
  }
}

enum class EntryKind { File, Folder, Missing, Other };  // missing: a link that leads nowhere

// The entries of one folder.
class Entries {
 public:
  explicit Entries(const std::string& folder) : path_(folder) {
    errno = 0;
    folder_.reset(opendir(folder.c_str()));
    if (!folder_) fail_file("listed", folder);
  }

  // The next one that is not hidden; nullptr after the last.
  const dirent* next() {
    while (true) {
      errno = 0;
      const dirent* const entry = readdir(folder_.get());
      if (!entry && errno != 0) fail_file("listed", path_);
      if (!entry || entry->d_name[0] != '.') return entry;
    }
  }

  // Most file systems say it with the name; of links, and on the others, the file has to be asked.
  EntryKind kind(const dirent& entry) const {
    if (entry.d_type == DT_REG) return EntryKind::File;
    if (entry.d_type == DT_DIR) return EntryKind::Folder;
    if (entry.d_type != DT_LNK && entry.d_type != DT_UNKNOWN) return EntryKind::Other;
    struct stat status = {};
    if (fstatat(dirfd(folder_.get()), entry.d_name, &status, 0) != 0) return EntryKind::Missing;
    if (S_ISREG(status.st_mode)) return EntryKind::File;
    return S_ISDIR(status.st_mode) ? EntryKind::Folder : EntryKind::Other;
  }

  // Whether it is a link to one of these folders.
  bool leads_to(const dirent& entry, const Identities& folders) const {
    struct stat status = {};
    return entry.d_type != DT_DIR && fstatat(dirfd(folder_.get()), entry.d_name, &status, 0) == 0 &&
           folders.contains({status.st_dev, status.st_ino});
  }

  Identities::value_type identity() const {
    struct stat status = {};
    errno = 0;
    if (fstat(dirfd(folder_.get()), &status) != 0) fail_file("looked at", path_);
    return {status.st_dev, status.st_ino};
  }

 private:
  struct Close {
    void operator()(DIR* folder) const { closedir(folder); }
  };
  std::string path_;
  std::unique_ptr<DIR, Close> folder_;
};

}  // namespace

std::vector<std::string> folders_in(const std::string& folder, int64_t* images) {
  std::vector<std::string> names;
  Identities above;
  add_with_above(folder, above);
  Entries entries(folder);
  while (const dirent* entry = entries.next()) {
    const EntryKind kind = entries.kind(*entry);
    if (kind == EntryKind::Folder && !entries.leads_to(*entry, above)) names.emplace_back(entry->d_name);
    if (images && kind == EntryKind::File && is_image_name(entry->d_name)) ++*images;
  }
  std::sort(names.begin(), names.end());
  return names;
}

void list_images(const std::string& folder, const std::string& prefix, PathList& images,
                 std::set<std::string, std::less<>>& missing, PassedOver& others) {
  // A link to a folder above would bring the images of other classes. A folder that is a link itself has one above its
  // place and one above what it leads to.
  Identities walked;
  add_with_above((std::filesystem::absolute(folder) / "").parent_path().parent_path().string(), walked);
  add_with_above(folder + "/..", walked);
  std::vector<std::string> waiting = {""};  // relative to the folder
  while (!waiting.empty()) {
    const std::string inside = std::move(waiting.back());
    waiting.pop_back();
    Entries entries(joined(folder, inside));
    if (!walked.insert(entries.identity()).second) continue;
    const size_t before = waiting.size();
    while (const dirent* entry = entries.next()) {
      const EntryKind kind = entries.kind(*entry);
      if (kind == EntryKind::Folder) {
        waiting.push_back(joined(inside, entry->d_name));
      } else if ((kind == EntryKind::File || kind == EntryKind::Missing) && is_image_name(entry->d_name)) {
        const std::string path = prefix + joined(inside, entry->d_name);
        images.add(path);
        if (kind == EntryKind::Missing) missing.insert(path);
      } else {
        pass_over(others, entry->d_name);
      }
    }
    // Sorts in reverse, so that the first of several names of one folder is taken on any machine.
    std::sort(waiting.begin() + ptrdiff_t(before), waiting.end(), std::greater<>());
  }
}

}  // namespace arbalest
