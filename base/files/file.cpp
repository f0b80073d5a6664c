// SPDX-License-Identifier: Apache-2.0
#include "base/files/file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.h"

namespace arbalest {

namespace fs = std::filesystem;

std::string describe_folder(const fs::path& folder) {
  constexpr size_t kShown = 12;
  std::error_code error;
  if (!fs::exists(folder, error)) return "which does not exist";
  if (!fs::is_directory(folder, error)) return "which is not a folder";
  std::vector<std::string> names;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code unknown;
    const std::string name = entry->path().filename().string();
    if (!name.starts_with('.')) names.push_back(name + (entry->is_directory(unknown) ? "/" : ""));
  }
  if (error) return fmt::format("which cannot be listed ({})", error.message());
  if (names.empty()) return "which is empty";
  std::sort(names.begin(), names.end());
  const size_t shown = std::min(names.size(), kShown);
  std::string text = fmt::format("which holds {}", fmt::join(names.begin(), names.begin() + ptrdiff_t(shown), ", "));
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

fs::path find_file(const std::string& what, std::span<const fs::path> folders, std::span<const std::string> names) {
  std::error_code error;
  for (const fs::path& folder : folders)
    for (const std::string& name : names)
      if (const fs::path path = folder / name; fs::is_regular_file(path, error)) return path;
  std::vector<std::string> places;
  for (const fs::path& folder : folders)
    places.push_back(fmt::format("'{}', {}", folder.string(), describe_folder(folder)));
  throw RunError(fmt::format("{}: no such file: looked for {} in {}", what, fmt::join(names, ", "),
                             fmt::join(places, "; and in ")));
}

namespace {

// Describes the file's folder for an error message if there is no file of that name.
std::string folder_hint(const fs::path& path, int reason) {
  if (reason != ENOENT && reason != ENOTDIR) return "";
  std::error_code error;
  const fs::path folder = path.parent_path().empty() ? fs::path(".") : path.parent_path();
  if (fs::exists(path, error)) return "";
  return fmt::format(" (folder '{}', {})", folder.string(), describe_folder(folder));
}

}  // namespace

void fail_file(const char* what, const fs::path& path) {
  const int number = errno;
  const std::string reason = number == 0 ? "out of memory" : std::strerror(number);
  throw RunError(fmt::format("{}: cannot be {}: {}{}", path.string(), what, reason, folder_hint(path, number)));
}

bool stays_inside(const std::string& path) {
  const fs::path parts(path);
  return !path.empty() && path.find('\0') == path.npos && !parts.is_absolute() &&
         std::find(parts.begin(), parts.end(), "..") == parts.end();
}

std::vector<uint8_t> read_file(const fs::path& path, uint64_t most) {
  const auto check_size = [&](uint64_t bytes) {
    if (bytes <= most) return;
    throw RunError(fmt::format("{}: found {} bytes or more, expected at most {}", path.string(), bytes, most));
  };
  errno = 0;
  const std::unique_ptr<FILE, int (*)(FILE*)> file(fopen(path.c_str(), "rbe"), fclose);
  if (!file) fail_file("opened", path);
  std::error_code error;
  const uint64_t size = fs::is_regular_file(path, error) ? fs::file_size(path, error) : 0;
  check_size(size);
  std::vector<uint8_t> bytes(size + 1);  // one more than expected, so that the end is met
  size_t have = 0;
  while (const size_t found = fread(bytes.data() + have, 1, bytes.size() - have, file.get())) {
    have += found;
    check_size(have);
    if (have == bytes.size()) bytes.resize(2 * have);
  }
  if (ferror(file.get())) fail_file("read", path);
  bytes.resize(have);
  return bytes;
}

size_t utf8_mark(std::string_view text) {
  constexpr std::string_view kMark = "\xef\xbb\xbf";
  return text.starts_with(kMark) ? kMark.size() : 0;
}

bool is_utf16(std::string_view text) {
  return text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff");
}

std::string plain_text(std::string_view text) {
  std::string plain(text.substr(utf8_mark(text)));
  size_t to = 0;
  for (size_t from = 0; from < plain.size(); ++from) {
    if (plain[from] == '\r' && from + 1 < plain.size() && plain[from + 1] == '\n') continue;
    plain[to++] = plain[from] == '\r' ? '\n' : plain[from];
  }
  plain.resize(to);
  return plain;
}

std::string read_text(const fs::path& path) {
  const std::vector<uint8_t> bytes = read_file(path, kMostText);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (is_utf16(text)) throw RunError(fmt::format("{}: found UTF-16, expected text in UTF-8", path.string()));
  return plain_text(text);
}

std::vector<std::string> read_lines(const fs::path& path) {
  const std::string text = read_text(path);
  std::string_view rest = text;
  std::vector<std::string> lines;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    lines.emplace_back(line);
  }
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

uint64_t most_decompressed(uint64_t compressed) {
  constexpr uint64_t kAlways = 64 << 20, kTimes = 200;
  return std::max(kAlways, std::min(compressed, UINT64_MAX / kTimes) * kTimes);
}

void InputFile::Close::operator()(void* file) const {
  gzclose_r(static_cast<gzFile>(file));
}

InputFile::InputFile(fs::path path) : path_(std::move(path)) {
  errno = 0;
  file_.reset(gzopen(path_.c_str(), "rbe"));
  if (!file_) fail_file("opened", path_);
  gzbuffer(static_cast<gzFile>(file_.get()), 1 << 17);
  std::error_code error;
  most_ = fs::is_regular_file(path_, error) ? most_decompressed(fs::file_size(path_, error)) : UINT64_MAX;
}

size_t InputFile::read_some(uint8_t* bytes, size_t count) {
  const gzFile file = static_cast<gzFile>(file_.get());
  const int found = gzread(file, bytes, unsigned(count));
  int status = Z_OK;
  const char* message = gzerror(file, &status);
  // A gzip stream that is cut off reads as a short file: the caller says what was expected.
  truncated_ = status == Z_BUF_ERROR;
  if (found < 0) throw RunError(fmt::format("{}: at byte {}: cannot be read: {}", path_.string(), offset_, message));
  offset_ += uint64_t(found);
  if (offset_ > most_) {
    fail(0, fmt::format("at most {} MiB in a compressed file of this size", most_ >> 20), "more");
  }
  return size_t(found);
}

std::vector<uint8_t> InputFile::read(uint64_t count, const std::string& what) {
  constexpr uint64_t kStep = 1 << 20;
  const uint64_t start = offset_;
  std::vector<uint8_t> bytes;
  while (bytes.size() < count) {
    const size_t have = bytes.size();
    const size_t step = size_t(std::min(count - have, kStep));
    bytes.resize(have + step);
    if (const size_t found = read_some(bytes.data() + have, step); found < step)
      fail(start, fmt::format("{} bytes of {}", count, what),
           fmt::format("{}, then the end of the file", have + found));
  }
  return bytes;
}

void InputFile::expect_end() {
  uint8_t byte = 0;
  const uint64_t end = offset_;
  if (read_some(&byte, 1) != 0) fail(end, "the end of the file", "more bytes");
  if (truncated_) fail(end, "the end of the gzip stream", "a file that was cut off");
}

void InputFile::fail(uint64_t offset, const std::string& expected, const std::string& found) const {
  throw RunError(fmt::format("{}: at byte {}: expected {}, found {}", path_.string(), offset, expected, found));
}

}  // namespace arbalest
