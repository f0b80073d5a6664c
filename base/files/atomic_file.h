// SPDX-License-Identifier: Apache-2.0
#pragma once
// Replacing a file as a whole. New content is written into a temporary file in the same folder, flushed to the disk and
// renamed over the old file. So a reader finds either the old content or the new, whatever happens in between.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace arbalest {

std::string unforeseen_digits();  // 16 hexadecimal ones, for a name that nobody can foresee

// The temporary file has a random name, is created anew (never opened where something lies already), and is removed
// unless commit() renames it. Such files of killed processes are removed first. An existing file keeps its permissions;
// a new one gets those that the umask leaves. A symbolic link stays, and what it points to is replaced or made. A
// device, such as /dev/null, is written to as it is. All functions throw RunError.
class AtomicFile {
 public:
  // Refuses a path that names something other than a regular file or a device, and a file that is write-protected: a
  // rename would replace it all the same.
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const uint8_t> bytes);
  void write(std::string_view text);

  // For a library that writes by itself: the open temporary file, which stays this object's own.
  int descriptor() const { return descriptor_; }

  // Makes what was written the content of the file.
  void commit();

 private:
  std::filesystem::path target_;
  std::string temporary_;  // empty once renamed, and for a device
  unsigned mode_ = 0;      // of the file that is replaced; 0: there is none
  int descriptor_ = -1;
};

// The file that writing to `path` replaces or makes: what its symbolic links lead to. Throws RunError if they go
// round in a circle.
std::filesystem::path output_target(const std::filesystem::path& path);

// Removes temporary files for `path` that killed processes left: files of the user's own, named as AtomicFile names
// them, that no process holds a lock on. Throws nothing.
void remove_abandoned(const std::filesystem::path& path);

}  // namespace arbalest
