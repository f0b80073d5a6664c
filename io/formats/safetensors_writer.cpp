// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "base/files/atomic_file.h"
#include "io/formats/json_error.h"
#include "io/formats/safetensors.h"
#include "io/formats/safetensors_format.h"

namespace arbalest {

using namespace safetensors;

bool is_utf8(const std::string& text) {
  try {
    Json(text).dump();
    return true;
  } catch (const Json::exception&) {
    return false;
  }
}

std::string as_utf8(const std::string& text) {
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
}

namespace {

// Metadata only describes: a graph's name, or a class's, that is no UTF-8 loses no weights.
std::string utf8_json(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// Throws RunError if the format has no such tensor.
const FormatType& type_of(const NamedTensor& tensor, const Reporter& report) {
  if (!is_utf8(tensor.name)) report.fail("name", "UTF-8", "other bytes");
  const auto type = std::find_if(std::begin(kFormatTypes), std::end(kFormatTypes), [&](const FormatType& known) {
    return known.dtype == tensor.dtype && known.widens == 0;
  });
  if (type == std::end(kFormatTypes)) report.fail("dtype", "data", std::string(name_of(tensor.dtype)));
  if (const uint64_t bytes = byte_count(size_of(tensor.dtype), tensor.shape, report); bytes != tensor.bytes.size())
    report.fail("bytes", fmt::format("{} for {} of shape {}", bytes, name_of(tensor.dtype), to_string(tensor.shape)),
                fmt::format("{}", tensor.bytes.size()));
  return *type;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const TensorFile& file,
                       const std::function<void()>& written) {
  // Larger elements first, so that every tensor is aligned; otherwise in the order given.
  std::vector<size_t> order(file.tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return size_of(file.tensors[a].dtype) > size_of(file.tensors[b].dtype); });
  uint64_t offset = 0;
  std::vector<uint64_t> begins(order.size());
  std::vector<std::span<const uint8_t>> pieces(2);
  for (const size_t i : order) {
    begins[i] = offset;
    offset += file.tensors[i].bytes.size();
    pieces.emplace_back(file.tensors[i].bytes);
  }
  // The header lists tensors in the order given.
  std::string text = "{";
  if (!file.metadata.empty()) text += "\"__metadata__\":" + utf8_json(file.metadata);
  std::unordered_set<std::string> names = {"__metadata__"};
  for (size_t i = 0; i < file.tensors.size(); ++i) {
    const NamedTensor& tensor = file.tensors[i];
    const Reporter report(path, &tensor.name);
    if (!names.insert(tensor.name).second) report.fail("name", "a name of its own", "it taken");
    const FormatType& type = type_of(tensor, report);
    text += fmt::format(R"({}{}:{{"dtype":"{}","shape":{},"data_offsets":[{},{}]}})", text.size() > 1 ? "," : "",
                        utf8_json(tensor.name), type.name, utf8_json(tensor.shape), begins[i],
                        begins[i] + tensor.bytes.size());
  }
  text += "}";
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  const uint64_t length = text.size();
  pieces[0] = {reinterpret_cast<const uint8_t*>(&length), kLengthBytes};
  pieces[1] = {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
  AtomicFile target(path);
  for (const std::span<const uint8_t> piece : pieces) target.write(piece);
  if (written) written();
  target.commit();
}

}  // namespace arbalest
