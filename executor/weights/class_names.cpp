#include "executor/weights/class_names.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace arbalest {
namespace {

using Json = nlohmann::json;

constexpr const char* kEntry = "class_names";

}  // namespace

void put_class_names(Metadata& metadata, const std::vector<std::string>& names) {
  if (!names.empty()) metadata[kEntry] = Json(names).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::vector<std::string> class_names_in(const Metadata& metadata) {
  const auto entry = metadata.find(kEntry);
  if (entry == metadata.end()) return {};
  const Json names = Json::parse(entry->second, nullptr, false);
  const auto is_text = [](const Json& name) { return name.is_string(); };
  if (!names.is_array() || !std::all_of(names.begin(), names.end(), is_text)) return {};
  return names.get<std::vector<std::string>>();
}

}  // namespace arbalest
