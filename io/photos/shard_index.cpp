#include "io/photos/shard_index.h"

#include <fmt/format.h>
#include <strings.h>
#include <sys/stat.h>

#include <charconv>
#include <filesystem>
#include <limits>
#include <string_view>

#include "graph/error.h"
#include "io/formats/atomic_file.h"
#include "io/formats/file.h"
#include "io/formats/tar_reader.h"
#include "io/photos/folder_listing.h"

namespace arbalest {
namespace {

// The index: a line that says what it is; one of the shard's size, its time of change in nanoseconds and its number of
// samples; one of offset, size, headers and label of each sample; and a last one, without which it is cut off.
constexpr std::string_view kFirstLine = "arbalest tar index 1", kLastLine = "end";
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

// Numbers with a space between; false where the line is anything else.
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

// Nothing where the text is no index of the shard as it is.
std::optional<std::vector<ShardSample>> parse_index(std::string_view text, const ShardState& state) {
  if (take_line(text) != kFirstLine) return std::nullopt;
  ShardState indexed;
  uint64_t count = 0;
  if (!parse_line(take_line(text), indexed.size, indexed.changed, count) || indexed != state) return std::nullopt;
  if (count > text.size()) return std::nullopt;
  std::vector<ShardSample> samples(count);
  uint64_t last = 0;
  for (ShardSample& sample : samples) {
    if (!parse_line(take_line(text), sample.offset, sample.size, sample.header, sample.label)) return std::nullopt;
    const bool fits = sample.header >= kHeader && sample.header <= sample.offset &&
                      sample.offset - sample.header >= last && sample.label >= 0 && sample.label < kMostClasses &&
                      sample.offset <= uint64_t(state.size) && sample.size <= uint64_t(state.size) - sample.offset;
    if (!fits) return std::nullopt;
    last = sample.offset + sample.size;
  }
  if (take_line(text) != kLastLine || !text.empty()) return std::nullopt;
  return samples;
}

std::string index_text(const std::vector<ShardSample>& samples, const ShardState& state) {
  std::string text = fmt::format("{}\n{} {} {}\n", kFirstLine, state.size, state.changed, samples.size());
  for (const ShardSample& sample : samples) {
    fmt::format_to(std::back_inserter(text), "{} {} {} {}\n", sample.offset, sample.size, sample.header, sample.label);
  }
  return text.append(kLastLine).append("\n");
}

// Finds the samples of an archive member by member.
class Indexer {
 public:
  explicit Indexer(const std::string& path) : file_(path, "a tar archive"), tar_(file_) {}

  std::vector<ShardSample> run() {
    while (const std::optional<TarMember> member = tar_.next()) add(*member);
    end_sample();
    return std::move(samples_);
  }

 private:
  void add(const TarMember& member) {
    if (!stays_inside(member.name)) tar_.fail(member.begin, "a name below a folder", fmt::format("'{}'", member.name));
    const size_t slash = member.name.rfind('/') + 1, dot = member.name.find('.', slash);
    if (dot == slash || dot == member.name.npos || member.type == TarMember::Type::Folder)
      return;  // hidden, or no part
    const std::string_view ending = std::string_view(member.name).substr(dot);
    const bool is_class = strcasecmp(std::string(ending).c_str(), ".cls") == 0;
    const bool is_image = is_image_name("x" + std::string(ending)) && ending.rfind('.') == 0;
    if (std::string base = member.name.substr(0, dot); base != base_) {
      end_sample();
      base_ = std::move(base);
      begin_ = member.begin;
    }
    if (!is_class && !is_image) return;
    if (member.type != TarMember::Type::File)
      tar_.fail(member.begin, "a file", fmt::format("'{}', a link", member.name));
    if (is_class ? label_.has_value() : image_.has_value()) {
      tar_.fail(member.begin, fmt::format("one {} of '{}'", is_class ? "class" : "image", base_),
                fmt::format("another, '{}'", member.name));
    }
    if (is_class) {
      label_ = read_class(member);
    } else {
      image_ = member;
    }
  }

  int32_t read_class(const TarMember& member) const {
    constexpr uint64_t kMost = 20;
    std::string text(size_t(std::min(member.size, kMost)), '\0');
    file_.read(member.offset, std::as_writable_bytes(std::span(text)));
    constexpr const char* kSpaces = " \t\r\n";
    text.erase(0, text.find_first_not_of(kSpaces));
    text.erase(text.find_last_not_of(kSpaces) + 1);
    int32_t label = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), label);
    if (error != std::errc() || end != text.data() + text.size() || label < 0 || label >= kMostClasses) {
      tar_.fail(member.offset, fmt::format("the number of a class in '{}', below {}", member.name, kMostClasses),
                fmt::format("'{}'", text));
    }
    return label;
  }

  void end_sample() {
    if (image_ && !label_) tar_.fail(begin_, fmt::format("'{}.cls' beside '{}'", base_, image_->name), "none");
    if (label_ && !image_) tar_.fail(begin_, fmt::format("an image '{}.jpg', .jpeg, .png or .webp", base_), "none");
    if (image_) {
      if (image_->size > std::numeric_limits<uint32_t>::max()) {
        tar_.fail(image_->begin, "an image of less than 4 GiB", fmt::format("{} bytes", image_->size));
      }
      samples_.push_back({image_->offset, uint32_t(image_->size), uint32_t(image_->offset - image_->begin), *label_});
    }
    image_.reset();
    label_.reset();
  }

  const RandomAccessFile file_;
  TarReader tar_;
  std::vector<ShardSample> samples_;
  // The sample that members are read of:
  std::string base_;
  uint64_t begin_ = 0;
  std::optional<TarMember> image_;
  std::optional<int32_t> label_;
};

}  // namespace

ShardIndex index_shard(const std::string& path) {
  const std::string beside = path + ".index";
  const ShardState state = state_of(path);
  std::error_code error;
  if (std::filesystem::is_regular_file(beside, error)) {
    const std::vector<uint8_t> bytes = read_file(beside);
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (auto samples = parse_index(text, state)) return {std::move(*samples), ""};
  }
  ShardIndex index{Indexer(path).run(), ""};
  try {
    AtomicFile file(beside);
    file.write(index_text(index.samples, state));
    file.commit();
  } catch (const RunError& fault) {
    index.not_kept = fault.what();
  }
  return index;
}

}  // namespace arbalest
