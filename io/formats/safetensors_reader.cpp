// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/files/file.h"
#include "base/files/file_kind.h"
#include "base/half.h"
#include "base/shell_word.h"
#include "io/formats/json_error.h"
#include "io/formats/json_watch.h"
#include "io/formats/safetensors.h"
#include "io/formats/safetensors_format.h"

namespace arbalest {

static_assert(std::endian::native == std::endian::little, "tensors are copied as they lie in memory");

namespace {

using namespace safetensors;
using Entry = SafetensorsReader::Entry;

constexpr std::string_view kIndexEnding = ".safetensors.index.json";
constexpr uint64_t kLongestHeader = 100'000'000;  // the format's own limit
constexpr size_t kLongestMessage = 200;           // of the JSON library's, which quotes what it found

const FormatType& parse_type(const Json& value, const Reporter& report) {
  std::string expected;
  for (const FormatType& type : kFormatTypes) {
    if (value.is_string() && value.get_ref<const std::string&>() == type.name) return type;
    expected += (expected.empty() ? "" : ", ") + std::string(type.name);
  }
  report.fail("dtype", "one of " + expected, shown(value));
}

// Unsigned integers that fit int64_t.
std::vector<int64_t> parse_numbers(const Json& value, const char* what, const Reporter& report) {
  std::vector<int64_t> numbers;
  bool good = value.is_array();
  for (size_t i = 0; good && i < value.size(); ++i) {
    good = value[i].is_number_unsigned() && value[i].get<uint64_t>() <= uint64_t(INT64_MAX);
    if (good) numbers.push_back(value[i].get<int64_t>());
  }
  if (!good) report.fail(what, "a list of integers from 0", shown(value));
  return numbers;
}

uint64_t stored_size(const Entry& entry) {
  const auto type = std::find_if(std::begin(kFormatTypes), std::end(kFormatTypes),
                                 [&](const FormatType& known) { return entry.widens == known.name; });
  return entry.widens.empty() ? size_of(entry.dtype) : type->widens;
}

Entry parse_entry(const std::filesystem::path& path, const std::string& name, const Json& value, uint64_t data_bytes) {
  const Reporter report(path, &name);
  if (!value.is_object()) report.fail("entry", "an object", shown(value));
  for (const char* key : {"dtype", "shape", "data_offsets"})
    if (!value.contains(key)) report.fail("entry", fmt::format("the key '{}'", key), shown(value));
  const FormatType& type = parse_type(value["dtype"], report);
  Entry entry{.name = name, .dtype = type.dtype, .shape = {}};
  if (type.widens > 0) entry.widens = type.name;
  entry.shape = parse_numbers(value["shape"], "shape", report);
  const std::vector<int64_t> offsets = parse_numbers(value["data_offsets"], "data_offsets", report);
  if (offsets.size() != 2 || offsets[0] > offsets[1] || uint64_t(offsets[1]) > data_bytes)
    report.fail("data_offsets", fmt::format("a begin and an end within the {} bytes of data", data_bytes),
                shown(value["data_offsets"]));
  entry.begin = uint64_t(offsets[0]);
  entry.end = uint64_t(offsets[1]);
  const uint64_t expected = byte_count(stored_size(entry), entry.shape, report);
  if (entry.end - entry.begin != expected)
    report.fail("data_offsets", fmt::format("{} bytes for {} of shape {}", expected, type.name, shown(value["shape"])),
                fmt::format("{} bytes", entry.end - entry.begin));
  return entry;
}

struct JsonHeader {
  Json json;                       // an object, sorted by name
  std::vector<std::string> names;  // its keys as they stand in the file
};

// JSON objects keep one of several equal keys silently; here that is an error, in the
// header and in its entries. Deep nesting is refused before anything is built of it.
class HeaderWatch : public JsonWatch {
 public:
  explicit HeaderWatch(const Reporter& report) : report_(report) {}
  std::vector<std::string> take_names() { return std::move(names_); }

  bool start_object(size_t) override { return enter(); }
  bool start_array(size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }
  bool key(string_t& name) override {
    if (!keys_[depth_ - 1].insert(name).second) report_.fail("header", "unique names", shown(name) + " twice");
    if (depth_ == 1) names_.push_back(name);
    return true;
  }

 private:
  static constexpr int kDepth = 3;  // header, entry, list

  bool enter() {
    if (depth_ == kDepth) report_.fail("header", fmt::format("at most {} levels", kDepth), "more");
    keys_[depth_++].clear();
    return true;
  }
  bool leave() {
    --depth_;
    return true;
  }

  const Reporter& report_;
  int depth_ = 0;
  std::set<std::string> keys_[kDepth];
  std::vector<std::string> names_;
};

JsonHeader parse_header(const std::filesystem::path& path, std::span<const uint8_t> text) {
  const Reporter report(path);
  HeaderWatch watch(report);
  Json::sax_parse(text.begin(), text.end(), &watch);
  JsonHeader header;
  try {
    header.json = Json::parse(text.begin(), text.end());
  } catch (const Json::exception& error) {
    report.fail("header", "JSON", message_of(error).substr(0, kLongestMessage));
  }
  if (!header.json.is_object()) report.fail("header", "an object", shown(header.json));
  header.names = watch.take_names();
  return header;
}

std::map<std::string, std::string> parse_metadata(const std::filesystem::path& path, const Json& value) {
  const Reporter report(path);
  if (!value.is_object()) report.fail("__metadata__", "an object", shown(value));
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) report.fail("__metadata__", "strings", fmt::format("'{}': {}", key, shown(text)));
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

// Checks that the tensors cover the data exactly once: no overlap, no hole, nothing after the last.
void check_coverage(const std::filesystem::path& path, const std::vector<Entry>& entries, uint64_t data_bytes) {
  std::vector<const Entry*> order;
  for (const Entry& entry : entries) order.push_back(&entry);
  std::sort(order.begin(), order.end(),
            [](const Entry* a, const Entry* b) { return std::tie(a->begin, a->end) < std::tie(b->begin, b->end); });
  uint64_t end = 0;
  for (const Entry* entry : order) {
    if (entry->begin != end)
      Reporter(path, &entry->name)
          .fail("data_offsets", fmt::format("data from byte {}, where the tensor before it ends", end),
                fmt::format("from byte {}", entry->begin));
    end = entry->end;
  }
  if (end != data_bytes)
    Reporter(path).fail("data", fmt::format("{} bytes, as the header says", end), fmt::format("{}", data_bytes));
}

// A command that converts the checkpoint, to be pasted into a shell: one line, because continued lines of a message are
// indented. Checkpoints often hold their tensors under "state_dict" or "model", and some of these share memory or are
// channels-last.
std::string conversion_of(const std::string& path) {
  return fmt::format(
      "convert it once, with PyTorch and the package safetensors:\n"
      "  python3 -c 'import sys, torch; from safetensors.torch import save_file; d = torch.load(sys.argv[1], "
      "map_location=\"cpu\", weights_only=True); "
      "d = d.get(\"state_dict\", d.get(\"model\", d)); save_file({{k: v.clone().contiguous() for k, v in d.items()}}, "
      "sys.argv[2])' {} {}",
      shell_word(path), shell_word(path + ".safetensors"));
}

// Throws if the file is of another known kind.
void expect_safetensors(const std::filesystem::path& path, std::span<const uint8_t> head) {
  const std::string kind = kind_of_file(head);
  if (kind.empty()) return;
  std::string message = fmt::format("{}: expected safetensors, found {}", path.string(), kind);
  if (kind == kPyTorchFile || kind == kPickle) message += "; " + conversion_of(path.string());
  throw RunError(message);
}

template <typename From, typename To>
void convert(const std::byte* from, size_t count, std::byte* to) {
  for (size_t i = 0; i < count; ++i) {
    From element;
    std::memcpy(&element, from + i * sizeof element, sizeof element);
    double wide = 0;
    if constexpr (std::is_same_v<From, uint16_t>) {
      wide = double(float_of_half(element));
    } else {
      wide = double(element);
    }
    To result;
    if constexpr (std::is_same_v<To, bfloat16>) {
      result = bfloat16(float(wide));
    } else {
      result = To(wide);
    }
    std::memcpy(to + i * sizeof result, &result, sizeof result);
  }
}

template <typename From>
void convert_to(DataType type, const std::byte* from, size_t count, std::byte* to) {
  switch (type) {
    case DataType::Float64: return convert<From, double>(from, count, to);
    case DataType::Bfloat16: return convert<From, bfloat16>(from, count, to);
    default: return convert<From, float>(from, count, to);
  }
}

template <typename From, typename To>
void widen(const std::string& file, const Entry& entry, const std::byte* from, size_t count, std::byte* to) {
  for (size_t i = 0; i < count; ++i) {
    From element;
    std::memcpy(&element, from + i * sizeof element, sizeof element);
    if (!std::in_range<To>(element)) {
      throw RunError(
          fmt::format("{}: tensor '{}' holds {}; expected numbers below 2^63", file, printable(entry.name), element));
    }
    const To wide = static_cast<To>(element);
    std::memcpy(to + i * sizeof wide, &wide, sizeof wide);
  }
}

// Between floating-point types, or from whole numbers to wider ones; SafetensorsReader::converts() has said so.
void convert_elements(const std::string& file, const Entry& entry, DataType type, const std::byte* from, size_t count,
                      std::byte* to) {
  if (entry.widens == "I8") return widen<int8_t, int32_t>(file, entry, from, count, to);
  if (entry.widens == "I16") return widen<int16_t, int32_t>(file, entry, from, count, to);
  if (entry.widens == "U16") return widen<uint16_t, int32_t>(file, entry, from, count, to);
  if (entry.widens == "U32") return widen<uint32_t, int64_t>(file, entry, from, count, to);
  if (entry.widens == "U64") return widen<uint64_t, int64_t>(file, entry, from, count, to);
  if (entry.widens == "F16") return convert_to<uint16_t>(type, from, count, to);
  switch (entry.dtype) {
    case DataType::Float64: return convert_to<double>(type, from, count, to);
    case DataType::Bfloat16: return convert_to<bfloat16>(type, from, count, to);
    default: return convert_to<float>(type, from, count, to);
  }
}

}  // namespace

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path) : path_(path.string()) {
  auto file = std::make_unique<RandomAccessFile>(path, "safetensors");
  if (path_.ends_with(kIndexEnding)) {
    add_shards(*file);
  } else {
    add_file(std::move(file));
  }
}

void SafetensorsReader::add_file(std::unique_ptr<RandomAccessFile> opened) {
  constexpr uint64_t kHead = 1024;
  const RandomAccessFile& file = *opened;
  const std::string& path = file.path();
  const Reporter report(path);
  std::vector<uint8_t> head(size_t(std::min(file.size(), kHead)));
  file.read(0, std::as_writable_bytes(std::span(head)));
  if (head.size() <= kLengthBytes || head[kLengthBytes] != '{') expect_safetensors(path, head);
  if (file.size() < kLengthBytes)
    report.fail("file", fmt::format("at least {} bytes", kLengthBytes), fmt::format("{}", file.size()));
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, head.data(), kLengthBytes);
  const uint64_t most = std::min<uint64_t>(file.size() - kLengthBytes, kLongestHeader);
  if (header_bytes > most)
    report.fail("length of the header", fmt::format("at most {} in a file of {} bytes", most, file.size()),
                fmt::format("{}", header_bytes));
  std::vector<uint8_t> text(header_bytes);
  file.read(kLengthBytes, std::as_writable_bytes(std::span(text)));
  const JsonHeader header = parse_header(path, text);
  const uint64_t data = kLengthBytes + header_bytes;
  std::vector<Entry> entries;
  for (const std::string& name : header.names) {
    const Json& value = header.json[name];
    if (name == "__metadata__") {
      metadata_.merge(parse_metadata(path, value));
    } else {
      entries.push_back(parse_entry(path, name, value, file.size() - data));
    }
  }
  check_coverage(path, entries, file.size() - data);
  for (Entry& entry : entries) {
    entry.file = files_.size();
    entry.begin += data;
    entry.end += data;
    if (const auto [known, added] = index_.emplace(entry.name, entries_.size()); !added) {
      report.fail(fmt::format("tensor '{}'", printable(entry.name)), "a name that no other shard has",
                  fmt::format("it in {}", files_[entries_[known->second].file]->path()));
    }
    entries_.push_back(std::move(entry));
  }
  files_.push_back(std::move(opened));
}

void SafetensorsReader::add_shards(const RandomAccessFile& index) {
  const Reporter report(path_);
  if (index.size() > kLongestHeader)
    report.fail("file", fmt::format("at most {} bytes", kLongestHeader), fmt::format("{}", index.size()));
  std::vector<uint8_t> text(size_t(index.size()));
  index.read(0, std::as_writable_bytes(std::span(text)));
  const Json stated = parse_header(path_, text).json;
  if (!stated.contains("weight_map") || !stated["weight_map"].is_object())
    report.fail("index", "an object 'weight_map' of tensors and their files", shown(stated));
  std::map<std::string, size_t> shards;  // in the order of their names
  for (const auto& [name, file] : stated["weight_map"].items()) {
    const bool inside = file.is_string() && stays_inside(file.get<std::string>());
    if (!inside)
      report.fail(fmt::format("weight_map of '{}'", printable(name)), "a file next to the index", shown(file));
    shards.emplace(file.get<std::string>(), 0);
  }
  for (auto& [file, number] : shards) {
    number = files_.size();
    const std::filesystem::path path = std::filesystem::path(path_).parent_path() / file;
    add_file(std::make_unique<RandomAccessFile>(path, "safetensors"));
  }
  for (const auto& [name, file] : stated["weight_map"].items()) {
    const Entry* entry = find(name);
    if (!entry || entry->file != shards.at(file.get<std::string>()))
      report.fail(fmt::format("weight_map of '{}'", printable(name)), "a file that has it", shown(file));
  }
}

const Entry* SafetensorsReader::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second];
}

std::vector<std::string> SafetensorsReader::shards() const {
  std::vector<std::string> shards;
  if (!path_.ends_with(kIndexEnding)) return shards;
  for (const auto& file : files_) shards.push_back(file->path());
  return shards;
}

bool SafetensorsReader::converts(const Entry& entry, DataType type) {
  return entry.dtype == type || (is_floating(entry.dtype) && is_floating(type));
}

void SafetensorsReader::read(const Entry& entry, DataType type, std::span<std::byte> to) const {
  constexpr size_t kStep = 1 << 18;  // elements converted at a time
  const RandomAccessFile& file = *files_[entry.file];
  if (entry.dtype == type && entry.widens.empty()) return file.read(entry.begin, to);
  const size_t from_size = size_t(stored_size(entry)), to_size = size_of(type);
  const size_t count = size_t(entry.end - entry.begin) / from_size;
  std::vector<std::byte> stored(std::min(count, kStep) * from_size);
  for (size_t i = 0; i < count; i += kStep) {
    const size_t step = std::min(kStep, count - i);
    file.read(entry.begin + i * from_size, std::span(stored).first(step * from_size));
    convert_elements(file.path(), entry, type, stored.data(), step, to.data() + i * to_size);
  }
}

const NamedTensor* TensorFile::find(const std::string& name) const {
  for (const NamedTensor& tensor : tensors)
    if (tensor.name == name) return &tensor;
  return nullptr;
}

TensorFile read_safetensors(const std::filesystem::path& path,
                            const std::function<bool(const std::string& name)>& reads) {
  const SafetensorsReader reader(path);
  TensorFile file{{}, reader.metadata()};
  for (const Entry& entry : reader.entries()) {
    if (reads && !reads(entry.name)) continue;
    NamedTensor tensor{entry.name, entry.dtype, entry.shape, {}};
    tensor.bytes.resize(size_t(entry.end - entry.begin) / size_t(stored_size(entry)) * size_of(entry.dtype));
    reader.read(entry, entry.dtype, std::as_writable_bytes(std::span(tensor.bytes)));
    file.tensors.push_back(std::move(tensor));
  }
  return file;
}

}  // namespace arbalest
