#include <fmt/format.h>

#include <algorithm>

#include "io/formats/atomic_file.h"
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

void write_safetensors(const std::filesystem::path& path, const TensorFile& file) {
  Json header = Json::object();
  if (!file.metadata.empty()) header["__metadata__"] = file.metadata;
  // Larger elements first, so that every tensor is aligned; otherwise in the order given.
  std::vector<const NamedTensor*> order;
  for (const NamedTensor& tensor : file.tensors) {
    const Reporter report(path, &tensor.name);
    if (tensor.name == "__metadata__" || header.contains(tensor.name))
      report.fail("name", "a name of its own", "it taken");
    if (!is_utf8(tensor.name)) report.fail("name", "UTF-8", "other bytes");
    const auto type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [&](const FormatType& known) { return known.dtype == tensor.dtype && !known.half; });
    if (type == std::end(kTypes)) report.fail("dtype", "data", std::string(name_of(tensor.dtype)));
    if (const uint64_t bytes = byte_count(size_of(tensor.dtype), tensor.shape, report); bytes != tensor.bytes.size())
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
  // Metadata only describes: a graph's name, or a class's, that is no UTF-8 loses no weights.
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  const uint64_t length = text.size();
  pieces[0] = {reinterpret_cast<const uint8_t*>(&length), kLengthBytes};
  pieces[1] = {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
  AtomicFile target(path);
  for (const std::span<const uint8_t> piece : pieces) target.write(piece);
  target.commit();
}

}  // namespace arbalest
