// SPDX-License-Identifier: Apache-2.0
#include "io/formats/trace_events.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <istream>
#include <memory>
#include <streambuf>
#include <string_view>

#include "base/error.h"
#include "base/files/file.h"
#include "base/files/file_kind.h"
#include "base/setting.h"
#include "base/shell_word.h"
#include "io/formats/json_error.h"

namespace arbalest {
namespace {

using nlohmann::json;

// The text of a file, piece by piece; gzread passes through what is not gzipped.
class TraceText : public std::streambuf {
 public:
  explicit TraceText(const std::string& path) : path_(path), file_(nullptr, gzclose) {
    errno = 0;
    file_.reset(gzopen(path.c_str(), "rb"));
    if (!file_) fail_file("opened", path);
    gzbuffer(file_.get(), 1 << 18);
    std::error_code error;
    const bool regular = std::filesystem::is_regular_file(path, error);
    if (regular) most_ = most_decompressed(std::filesystem::file_size(path, error));
  }

  // Line and column of a byte of the piece that was read last; bytes of the whole text count from 1.
  Position position_of(size_t byte) const {
    const size_t offset = std::clamp(byte, before_ + 1, before_ + piece_size()) - before_ - 1;
    const std::string_view read(piece_.data(), offset);
    const size_t start = read.rfind('\n');
    const auto line = line_ + size_t(std::count(read.begin(), read.end(), '\n'));
    const size_t column = start == read.npos ? before_ + offset - line_start_ : offset - start - 1;
    return {path_, int(line) + 1, int(column) + 1};
  }

  // The part of the piece that has been read from the file but not taken yet.
  std::string_view ahead() const { return {gptr(), size_t(egptr() - gptr())}; }

 protected:
  int_type underflow() override {
    if (at_end_) return traits_type::eof();
    leave_piece();
    const int got = gzread(file_.get(), piece_.data(), unsigned(piece_.size()));
    int status = Z_OK;
    const char* message = gzerror(file_.get(), &status);
    if (got < 0 || (status != Z_OK && status != Z_STREAM_END)) {
      std::string_view why = status == Z_ERRNO ? std::strerror(errno) : message;
      if (why.substr(0, path_.size() + 2) == path_ + ": ") why.remove_prefix(path_.size() + 2);  // zlib's own prefix
      throw RunError(fmt::format("{}: cannot be read: {}", path_, why));
    }
    at_end_ = size_t(got) < piece_.size();
    setg(piece_.data(), piece_.data(), piece_.data() + got);
    if (before_ + size_t(got) > most_) {
      throw RunError(fmt::format("{}: cannot be read: it holds more than {} MiB, which no trace of this size does",
                                 path_, most_ >> 20));
    }
    return got == 0 ? traits_type::eof() : traits_type::to_int_type(*gptr());
  }

 private:
  size_t piece_size() const { return size_t(egptr() - eback()); }

  void leave_piece() {
    const std::string_view read(piece_.data(), piece_size());
    line_ += size_t(std::count(read.begin(), read.end(), '\n'));
    if (const size_t last = read.rfind('\n'); last != read.npos) line_start_ = before_ + last + 1;
    before_ += read.size();
  }

  const std::string path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
  uint64_t most_ = UINT64_MAX;  // bytes
  std::string piece_ = std::string(1 << 20, '\0');
  bool at_end_ = false;
  size_t before_ = 0;      // bytes before the piece
  size_t line_ = 0;        // ends of lines among them
  size_t line_start_ = 0;  // offset of the line in which the piece begins
};

// Handler for json::sax_parse(). Objects at depth 2, in the list inside the outermost object, are events. A field that
// holds an object or a list becomes a tree.
class EventHandler {
 public:
  explicit EventHandler(const std::function<void(const TraceEvent&)>& take) : take_(take) {}

  bool has_list() const { return has_list_; }

  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(int64_t value) { return put(value); }
  bool number_unsigned(uint64_t value) { return put(value); }
  bool number_float(double value, const std::string&) { return put(value); }
  bool string(std::string& value) { return put(std::move(value)); }
  bool binary(json::binary_t&) { return false; }  // text has none

  bool start_object(size_t) {
    enter();
    if (in_list_ && depth_ == kEvent) {
      in_event_ = true;
      event_.fields.clear();
      event_.args.clear();
    } else if (in_event_ && depth_ == kEvent + 1 && key_ == "args") {
      in_args_ = true;
    } else if (in_event_) {
      open(json::object());
    }
    return true;
  }

  bool start_array(size_t) {
    enter();
    if (depth_ == kEvent - 1 && key_ == "traceEvents") {
      has_list_ = in_list_ = true;
    } else if (in_event_) {
      open(json::array());
    }
    return true;
  }

  bool key(std::string& name) {
    key_.swap(name);
    return true;
  }

  bool end_object() {
    if (in_event_ && depth_ == kEvent) take_(event_);
    leave();
    return true;
  }
  bool end_array() {
    leave();
    return true;
  }

  template <typename Error>
  bool parse_error(size_t, const std::string&, const Error& error) {
    throw error;
  }

 private:
  static constexpr int kDeepest = 16;  // messages that show a value go down it
  static constexpr int kEvent = 3;     // objects and lists that are open in an event

  void enter() {
    if (++depth_ <= kDeepest) return;
    throw GraphError(fmt::format("objects and lists are nested more than {} deep", kDeepest));
  }

  void leave() {
    --depth_;
    if (!open_.empty()) {
      open_.pop_back();
    } else if (depth_ == kEvent) {
      in_args_ = false;
    } else if (depth_ == kEvent - 1) {
      in_event_ = false;
    } else {
      in_list_ = false;
    }
  }

  // The place for a value at the current one.
  json& place() {
    if (open_.empty()) return (in_args_ ? event_.args : event_.fields).add(key_);
    json& parent = *open_.back();
    if (parent.is_object()) return parent[key_];
    parent.push_back(nullptr);
    return parent.back();
  }

  void open(json container) {
    json& value = place();
    value = std::move(container);
    open_.push_back(&value);
  }

  template <typename Value>
  bool put(Value&& value) {
    if (in_event_) place() = std::forward<Value>(value);
    return true;
  }

  const std::function<void(const TraceEvent&)>& take_;
  TraceEvent event_;
  std::string key_;          // of the value that comes
  std::vector<json*> open_;  // containers of the tree that is being read, the outermost first
  int depth_ = 0;            // objects and lists that are open
  bool has_list_ = false;
  bool in_list_ = false;   // 'traceEvents'
  bool in_event_ = false;  // one of its objects
  bool in_args_ = false;   // the object 'args' of that one
};

}  // namespace

const json* EventFields::find(std::string_view key) const {
  for (size_t i = count_; i-- > 0;) {
    if (fields_[i].first == key) return &fields_[i].second;
  }
  return nullptr;
}

const json& EventFields::at(std::string_view key) const {
  const json* value = find(key);
  if (value == nullptr) throw GraphError(fmt::format("key '{}' not found", key));
  return *value;
}

json EventFields::as_object() const {
  json object = json::object();
  for (size_t i = 0; i < count_; ++i) object[fields_[i].first] = fields_[i].second;
  return object;
}

json& EventFields::add(std::string_view key) {
  if (count_ == fields_.size()) fields_.emplace_back();
  auto& [name, value] = fields_[count_++];
  name.assign(key);
  return value = nullptr;
}

void read_events(const std::string& path, const std::function<void(const TraceEvent&)>& take) {
  errno = 0;
  TraceText text(path);
  try {
    if (text.sgetc() == TraceText::traits_type::eof()) {  // not the stream's peek(), which swallows what is thrown
      throw GraphError(
          fmt::format("found an empty file, expected a trace that {} wrote", name_of(SettingKey::TraceOfRun)));
    }
    if (text.ahead().starts_with(kLogStart)) {
      throw GraphError(
          fmt::format("found a log that {} wrote, expected a trace that {} wrote: it is shown by: arbalest report {}",
                      name_of(SettingKey::LogOfRun), name_of(SettingKey::TraceOfRun), shell_word(path)));
    }
    std::istream stream(&text);
    EventHandler handler(take);
    json::sax_parse(stream, &handler);
    if (!handler.has_list()) {
      throw GraphError(
          fmt::format("found no list 'traceEvents', expected a trace that {} wrote", name_of(SettingKey::TraceOfRun)));
    }
  } catch (const json::parse_error& error) {
    const std::string message = message_of(error);  // "parse error at line 1, column 2: …"
    throw GraphError(text.position_of(error.byte), fmt::format("not JSON: {}", message.substr(message.find(": ") + 2)));
  } catch (const json::exception& error) {  // a number that no double holds
    throw GraphError(Position{path, 0, 0}, message_of(error));
  } catch (const GraphError& error) {
    throw GraphError(Position{path, 0, 0}, error.what());
  }
}

}  // namespace arbalest
