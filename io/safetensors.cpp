#include "io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>

#include "graph/error.h"
#include "io/file.h"
#include "io/json_error.h"

namespace arbalest {

static_assert(std::endian::native == std::endian::little, "tensors are copied as they lie in memory");

namespace {

using Json = nlohmann::ordered_json;  // keeps the order of the tensors

constexpr uint64_t kLongestHeader = 100'000'000;  // the format's own limit
constexpr size_t kLengthBytes = 8;

struct FormatType {
  const char* name;
  DataType dtype;
};
constexpr FormatType kTypes[] = {{"F64", DataType::Float64}, {"F32", DataType::Float32}, {"BF16", DataType::Bfloat16},
                                 {"I64", DataType::Int64},   {"I32", DataType::Int32},   {"U8", DataType::Uint8}};

// What a message starts with; the tensor's name may be anything, so it is quoted as JSON.
class Reporter {
 public:
  Reporter(const std::filesystem::path& path, const std::string* tensor = nullptr) : where_(path.string()) {
    if (tensor) where_ += ": tensor " + Json(*tensor).dump(-1, ' ', true, Json::error_handler_t::replace);
  }

  [[noreturn]] void fail(const std::string& what, const std::string& expected, const std::string& found) const {
    throw RunError(fmt::format("{}: {}: expected {}, found {}", where_, what, expected, found));
  }

 private:
  std::string where_;
};

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
}

struct Entry {
  NamedTensor tensor;
  uint64_t begin = 0, end = 0;  // into the data that follows the header
};

DataType parse_dtype(const Json& value, const Reporter& report) {
  std::string expected;
  for (const FormatType& type : kTypes) {
    if (value.is_string() && value.get_ref<const std::string&>() == type.name) return type.dtype;
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

uint64_t byte_count(DataType dtype, const Shape& shape, const Reporter& report) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  uint64_t bytes = size_of(dtype);
  for (const int64_t extent : shape)
    if (__builtin_mul_overflow(bytes, uint64_t(extent), &bytes) || bytes > uint64_t(INT64_MAX))
      report.fail("shape", "a tensor that memory can hold", to_string(shape));
  return bytes;
}

Entry parse_entry(const std::filesystem::path& path, const std::string& name, const Json& value, uint64_t data_bytes) {
  const Reporter report(path, &name);
  if (!value.is_object()) report.fail("entry", "an object", shown(value));
  for (const char* key : {"dtype", "shape", "data_offsets"})
    if (!value.contains(key)) report.fail("entry", fmt::format("the key '{}'", key), shown(value));
  Entry entry;
  entry.tensor.name = name;
  entry.tensor.dtype = parse_dtype(value["dtype"], report);
  entry.tensor.shape = parse_numbers(value["shape"], "shape", report);
  const std::vector<int64_t> offsets = parse_numbers(value["data_offsets"], "data_offsets", report);
  if (offsets.size() != 2 || offsets[0] > offsets[1] || uint64_t(offsets[1]) > data_bytes)
    report.fail("data_offsets", fmt::format("a begin and an end within the {} bytes of data", data_bytes),
                shown(value["data_offsets"]));
  entry.begin = uint64_t(offsets[0]);
  entry.end = uint64_t(offsets[1]);
  const uint64_t expected = byte_count(entry.tensor.dtype, entry.tensor.shape, report);
  if (entry.end - entry.begin != expected)
    report.fail("data_offsets",
                fmt::format("{} bytes for {} of shape {}", expected, name_of(entry.tensor.dtype),
                            to_string(entry.tensor.shape)),
                fmt::format("{} bytes", entry.end - entry.begin));
  return entry;
}

// JSON objects keep one of several equal keys silently; here that is an error, in the header and in its entries. Deep
// nesting is refused while it is parsed, before it takes memory.
Json parse_header(const std::filesystem::path& path, std::span<const uint8_t> text) {
  constexpr int kDepth = 3;  // header, entry, list
  const Reporter report(path);
  std::set<std::string> keys[kDepth];
  const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start) {
      if (depth >= kDepth) report.fail("header", fmt::format("at most {} levels", kDepth), "more");
      keys[depth].clear();
    } else if (event == Json::parse_event_t::key && !keys[depth - 1].insert(parsed.get<std::string>()).second) {
      report.fail("header", "unique names", shown(parsed) + " twice");
    }
    return true;
  };
  Json header;
  try {
    header = Json::parse(text.begin(), text.end(), watch);
  } catch (const Json::exception& error) {
    report.fail("header", "JSON", message_of(error));
  }
  if (!header.is_object()) report.fail("header", "an object", shown(header));
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

// The tensors cover the data exactly once: no overlap, no hole, nothing behind.
void check_coverage(const std::filesystem::path& path, const std::vector<Entry>& entries, uint64_t data_bytes) {
  std::vector<const Entry*> order;
  for (const Entry& entry : entries) order.push_back(&entry);
  std::sort(order.begin(), order.end(),
            [](const Entry* a, const Entry* b) { return std::tie(a->begin, a->end) < std::tie(b->begin, b->end); });
  uint64_t end = 0;
  for (const Entry* entry : order) {
    if (entry->begin != end)
      Reporter(path, &entry->tensor.name)
          .fail("data_offsets", fmt::format("data from byte {}, where the tensor before it ends", end),
                fmt::format("from byte {}", entry->begin));
    end = entry->end;
  }
  if (end != data_bytes)
    Reporter(path).fail("data", fmt::format("{} bytes, as the header says", end), fmt::format("{}", data_bytes));
}

}  // namespace

const NamedTensor* TensorFile::find(const std::string& name) const {
  for (const NamedTensor& tensor : tensors)
    if (tensor.name == name) return &tensor;
  return nullptr;
}

TensorFile read_safetensors(const std::filesystem::path& path) {
  const Reporter report(path);
  const std::vector<uint8_t> content = read_file(path);
  if (content.size() < kLengthBytes)
    report.fail("file", fmt::format("at least {} bytes", kLengthBytes), fmt::format("{}", content.size()));
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, content.data(), kLengthBytes);
  const uint64_t most = std::min<uint64_t>(content.size() - kLengthBytes, kLongestHeader);
  if (header_bytes > most)
    report.fail("length of the header", fmt::format("at most {} in a file of {} bytes", most, content.size()),
                fmt::format("{}", header_bytes));
  const auto body = std::span(content).subspan(kLengthBytes);
  const Json header = parse_header(path, body.first(header_bytes));
  const auto data = body.subspan(header_bytes);

  TensorFile file;
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__")
      file.metadata = parse_metadata(path, value);
    else
      entries.push_back(parse_entry(path, name, value, data.size()));
  }
  check_coverage(path, entries, data.size());

  for (Entry& entry : entries) {
    entry.tensor.bytes.assign(data.begin() + ptrdiff_t(entry.begin), data.begin() + ptrdiff_t(entry.end));
    file.tensors.push_back(std::move(entry.tensor));
  }
  return file;
}

void write_safetensors(const std::filesystem::path& path, const TensorFile& file) {
  Json header = Json::object();
  if (!file.metadata.empty()) header["__metadata__"] = file.metadata;
  // Larger elements first, so that every tensor is aligned; otherwise in the order given.
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& tensor : file.tensors) {
    const Reporter report(path, &tensor.name);
    if (tensor.name == "__metadata__" || header.contains(tensor.name))
      report.fail("name", "a name of its own", "it taken");
    const auto type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [&](const FormatType& known) { return known.dtype == tensor.dtype; });
    if (type == std::end(kTypes)) report.fail("dtype", "data", std::string(name_of(tensor.dtype)));
    if (const uint64_t bytes = byte_count(tensor.dtype, tensor.shape, report); bytes != tensor.bytes.size())
      report.fail("bytes", fmt::format("{} for {} of shape {}", bytes, name_of(tensor.dtype), to_string(tensor.shape)),
                  fmt::format("{}", tensor.bytes.size()));
    header[tensor.name] = {{"dtype", type->name}, {"shape", tensor.shape}, {"data_offsets", {0, 0}}};
    order.push_back(&tensor);
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const NamedTensor* a, const NamedTensor* b) { return size_of(a->dtype) > size_of(b->dtype); });
  uint64_t offset = 0;
  std::vector<std::span<const uint8_t>> pieces(2);
  for (const NamedTensor* tensor : order) {
    header[tensor->name]["data_offsets"] = {offset, offset + tensor->bytes.size()};
    offset += tensor->bytes.size();
    pieces.emplace_back(tensor->bytes);
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception& error) {
    Reporter(path).fail("names", "UTF-8", message_of(error));
  }
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  const uint64_t length = text.size();
  pieces[0] = {reinterpret_cast<const uint8_t*>(&length), kLengthBytes};
  pieces[1] = {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
  replace_file(path, pieces);
}

}  // namespace arbalest
