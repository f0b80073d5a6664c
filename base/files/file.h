// SPDX-License-Identifier: Apache-2.0
#pragma once
// Files: looking for them with errors that help, reading them plain or gzipped.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace arbalest {

inline constexpr size_t kFilesAtOnce = 8;  // that threads look at, where the disk is waited for

// "which holds a, b, c and 4 more", "which is empty", "which does not exist", "which is not a folder".
std::string describe_folder(const std::filesystem::path& folder);

// The first of `names` that is a file in one of `folders`, folder by folder. Throws RunError that says what was looked
// for, where, and what is there instead; `what` is for whom ("mnist: training images").
std::filesystem::path find_file(const std::string& what, std::span<const std::filesystem::path> folders,
                                std::span<const std::string> names);

// Throws RunError from errno: "PATH: cannot be WHAT: No such file or directory (folder 'F', which holds a, b)".
[[noreturn]] void fail_file(const char* what, const std::filesystem::path& path);

// Whether a path that a file states leads to something below the file's own folder: relative, without "..".
bool stays_inside(const std::string& path);

// A file as it is. Throws RunError, also if it has more than `most` bytes.
std::vector<uint8_t> read_file(const std::filesystem::path& path, uint64_t most = UINT64_MAX);

inline constexpr uint64_t kMostText = uint64_t{1} << 30;  // bytes of a file that people write or read

// How many bytes of a text's beginning are the byte order mark of UTF-8: 3 or 0.
size_t utf8_mark(std::string_view text);
// Whether a text begins with the mark of UTF-16, which nothing here reads.
bool is_utf16(std::string_view text);
// The text without its byte order mark, and with "\n" at the end of each line, which may be "\r\n" or "\r".
std::string plain_text(std::string_view text);

// A file that people write or read, as plain_text() has it. Throws RunError, also if it is UTF-16 or has more than
// kMostText bytes.
std::string read_text(const std::filesystem::path& path);

// Its lines, without those at the end that are empty.
std::vector<std::string> read_lines(const std::filesystem::path& path);

// The most that a gzipped file of so many bytes may hold. What is compressed further than any data is (deflate's limit
// is 1032 times) is refused before it fills the memory.
uint64_t most_decompressed(uint64_t compressed);

// Reads a file from the start, decompressing it if it is gzipped. Offsets are those of the decompressed content.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path path);  // throws RunError

  // Exactly `count` bytes. Throws RunError (file, offset, expected, found) if the file ends sooner or is corrupt.
  // Memory grows with what is there, not with `count`, which may come from the file itself.
  std::vector<uint8_t> read(uint64_t count, const std::string& what);

  // Throws RunError unless the file ends here.
  void expect_end();

  // Throws RunError: "FILE: at byte OFFSET: expected EXPECTED, found FOUND".
  [[noreturn]] void fail(uint64_t offset, const std::string& expected, const std::string& found) const;

  uint64_t offset() const { return offset_; }

 private:
  size_t read_some(uint8_t* bytes, size_t count);  // fewer than count at the end of the file

  struct Close {
    void operator()(void* file) const;
  };
  std::filesystem::path path_;
  std::unique_ptr<void, Close> file_;  // gzFile
  uint64_t offset_ = 0;
  uint64_t most_ = 0;       // bytes that it may hold
  bool truncated_ = false;  // the last read met the end of a gzip stream that has none
};

}  // namespace arbalest
