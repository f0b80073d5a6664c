// SPDX-License-Identifier: Apache-2.0
#include "io/photos/shard_index.h"

#include <fmt/format.h>
#include <strings.h>
#include <sys/stat.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <limits>
#include <map>
#include <string_view>

#include "base/error.h"
#include "base/files/atomic_file.h"
#include "base/files/file.h"
#include "base/number.h"
#include "io/formats/tar_reader.h"
#include "io/images/image_format.h"
#include "io/sources/passed_over.h"

namespace arbalest {
namespace {

// The index begins with a line that says what it is. The second has the shard's size, its time of change in
// nanoseconds, its number of samples, that of samples with dots in their names, and that of endings of other members.
// Then each sample has a line of offset, size, headers and label, and each ending one of its number and itself. Without
// the last line the index is cut off.
constexpr std::string_view kFirstLine = "arbalest tar index 2", kLastLine = "end";
constexpr uint32_t kHeader = 512;  // bytes of a member's, at least
constexpr int32_t kMostClasses = 10'000'000;

struct ShardState {
  int64_t size = 0, changed = 0;
  bool operator==(const ShardState&) const = default;
};

ShardState state_of(const std::string& path) {
  struct stat status = {};
  errno = 0;
  if (stat(path.c_str(), &status) != 0) fail_file("looked at", path);
  return {status.st_size, int64_t(status.st_mtim.tv_sec) * 1'000'000'000 + status.st_mtim.tv_nsec};
}

std::string_view take_line(std::string_view& rest) {
  const std::string_view line = rest.substr(0, rest.find('\n'));
  rest.remove_prefix(std::min(rest.size(), line.size() + 1));
  return line;
}

// Parses numbers with a space between; false if the line is anything else.
template <typename... T>
bool parse_line(std::string_view line, T&... numbers) {
  const char* at = line.data();
  const char* const end = at + line.size();
  bool first = true;
  const auto parse = [&](auto& number) {
    if (!first && (at == end || *at++ != ' ')) return false;
    first = false;
    const auto [behind, error] = std::from_chars(at, end, number);
    at = behind;
    return error == std::errc();
  };
  return (parse(numbers) && ...) && at == end;
}

bool parse_other(std::string_view line, PassedOver& others) {
  const size_t space = line.find(' ');
  int64_t number = 0;
  if (space == line.npos || !parse_line(line.substr(0, space), number) || number < 1) return false;
  return others.emplace(line.substr(space + 1), number).second;
}

// Parses the index; none if the text is no index of the shard in its present state.
std::optional<ShardIndex> parse_index(std::string_view text, const ShardState& state) {
  if (take_line(text) != kFirstLine) return std::nullopt;
  ShardState indexed;
  ShardIndex index;
  uint64_t count = 0, endings = 0;
  if (!parse_line(take_line(text), indexed.size, indexed.changed, count, index.dotted, endings)) return std::nullopt;
  if (indexed != state || count > text.size() || endings > text.size()) return std::nullopt;
  if (index.dotted < 0 || uint64_t(index.dotted) > count) return std::nullopt;
  index.samples.resize(count);
  uint64_t last = 0;
  for (ShardSample& sample : index.samples) {
    if (!parse_line(take_line(text), sample.offset, sample.size, sample.header, sample.label)) return std::nullopt;
    const bool fits = sample.header >= kHeader && sample.header <= sample.offset &&
                      sample.offset - sample.header >= last && sample.label >= 0 && sample.label < kMostClasses &&
                      sample.offset <= uint64_t(state.size) && sample.size <= uint64_t(state.size) - sample.offset;
    if (!fits) return std::nullopt;
    last = sample.offset + sample.size;
  }
  for (uint64_t i = 0; i < endings; ++i) {
    if (!parse_other(take_line(text), index.others)) return std::nullopt;
  }
  if (take_line(text) != kLastLine || !text.empty()) return std::nullopt;
  return index;
}

std::string index_text(const ShardIndex& index, const ShardState& state) {
  std::string text = fmt::format("{}\n{} {} {} {} {}\n", kFirstLine, state.size, state.changed, index.samples.size(),
                                 index.dotted, index.others.size());
  for (const ShardSample& sample : index.samples) {
    fmt::format_to(std::back_inserter(text), "{} {} {} {}\n", sample.offset, sample.size, sample.header, sample.label);
  }
  for (const auto& [ending, number] : index.others) text += fmt::format("{} {}\n", number, ending);
  return text.append(kLastLine).append("\n");
}

// Finds the samples of an archive member by member.
class Indexer {
 public:
  explicit Indexer(const std::string& path) : file_(path, "a tar archive"), tar_(file_) {}

  ShardIndex run() {
    while (const std::optional<TarMember> member = tar_.next()) add(*member);
    end_group();
    return std::move(index_);
  }

 private:
  // The members whose names are the same up to the last dot.
  struct Parts {
    uint64_t begin = 0;                            // of the first
    std::optional<TarMember> image, label, twice;  // twice: a second one of either
    bool is_sample() const { return image && label; }
  };

  void add(const TarMember& member) {
    const std::string& name = member.name;
    if (!stays_inside(name)) tar_.fail(member.begin, "a name below a folder", fmt::format("'{}'", name));
    const size_t slash = name.rfind('/') + 1, dot = name.find('.', slash), last_dot = name.rfind('.');
    if (dot == slash || slash == name.size() || member.type == TarMember::Type::Folder) return;  // hidden, or a folder
    if (dot == name.npos) return pass_over(index_.others, name);
    if (const std::string_view group = std::string_view(name).substr(0, dot); group != group_) {
      end_group();
      group_ = group;
    }
    const bool is_class = strcasecmp(name.c_str() + last_dot, ".cls") == 0;
    if (!is_class && !is_image_name(name.substr(slash))) return pass_over(index_.others, name);
    const bool aside = last_dot != dot;  // several dots may mark a companion of a sample, such as a mask
    if (aside && member.type != TarMember::Type::File) return pass_over(index_.others, name);
    if (member.type != TarMember::Type::File) tar_.fail(member.begin, "a file", fmt::format("'{}', a link", name));
    const std::string base = name.substr(0, last_dot);
    const auto [at, is_first] = parts_.try_emplace(base);
    Parts& parts = at->second;
    if (is_first) parts.begin = member.begin;
    if (is_class ? parts.label.has_value() : parts.image.has_value()) {
      parts.twice = member;
      return aside ? void() : fail_twice(base, member);
    }
    (is_class ? parts.label : parts.image) = member;
  }

  void fail_twice(const std::string& base, const TarMember& member) const {
    tar_.fail(member.begin, fmt::format("one {} of '{}'", member.name.ends_with(".cls") ? "class" : "image", base),
              fmt::format("another, '{}'", member.name));
  }

  int32_t read_class(const TarMember& member) const {
    constexpr uint64_t kMost = 20;
    std::string text(size_t(std::min(member.size, kMost)), '\0');
    file_.read(member.offset, std::as_writable_bytes(std::span(text)));
    constexpr const char* kSpaces = " \t\r\n";
    text.erase(0, utf8_mark(text));
    text.erase(0, text.find_first_not_of(kSpaces));
    text.erase(text.find_last_not_of(kSpaces) + 1);
    const int32_t label = read_number<int32_t>(text).value_or(-1);
    if (label < 0 || label >= kMostClasses) {
      tar_.fail(member.offset, fmt::format("the number of a class in '{}', below {}", member.name, kMostClasses),
                fmt::format("'{}'", text));
    }
    return label;
  }

  // See index_shard().
  void end_group() {
    const size_t first = index_.samples.size();
    const bool plain = parts_.contains(group_);
    const bool divided =
        !plain && std::any_of(parts_.begin(), parts_.end(), [](const auto& each) { return each.second.is_sample(); });
    for (const auto& [base, parts] : parts_) {
      if (parts.is_sample() && parts.twice) fail_twice(base, *parts.twice);
      if (parts.is_sample()) {
        add_sample(parts);
        index_.dotted += base != group_;
      } else if (base == group_ || divided) {
        refuse(base, parts);
      } else {
        pass_over(index_.others, parts.image ? parts.image->name : parts.label->name);
      }
    }
    std::sort(index_.samples.begin() + int64_t(first), index_.samples.end(),
              [](const ShardSample& a, const ShardSample& b) { return a.offset < b.offset; });
    parts_.clear();
  }

  [[noreturn]] void refuse(const std::string& base, const Parts& parts) const {
    if (parts.image) tar_.fail(parts.begin, fmt::format("'{}.cls' next to '{}'", base, parts.image->name), "none");
    tar_.fail(parts.begin, fmt::format("an image '{}.jpg', or with another of {}", base, image_endings()), "none");
  }

  void add_sample(const Parts& parts) {
    const TarMember& image = *parts.image;
    const int32_t label = read_class(*parts.label);
    if (image.size > std::numeric_limits<uint32_t>::max()) {
      tar_.fail(image.begin, "an image of less than 4 GiB", fmt::format("{} bytes", image.size));
    }
    index_.samples.push_back({image.offset, uint32_t(image.size), uint32_t(image.offset - image.begin), label});
  }

  const RandomAccessFile file_;
  TarReader tar_;
  ShardIndex index_;
  // The group that members are read of, and what it has by names without their endings.
  std::string group_;
  std::map<std::string, Parts> parts_;
};

}  // namespace

ShardIndex index_shard(const std::string& path) {
  const std::string beside = path + ".index";
  const ShardState state = state_of(path);
  std::error_code error;
  if (std::filesystem::is_regular_file(beside, error)) {
    const std::vector<uint8_t> bytes = read_file(beside);
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (auto index = parse_index(text, state)) return std::move(*index);
  }
  ShardIndex index = Indexer(path).run();
  try {
    AtomicFile file(beside);
    file.write(index_text(index, state));
    file.commit();
  } catch (const RunError& fault) {
    index.not_kept = fault.what();
  }
  return index;
}

}  // namespace arbalest
