// SPDX-License-Identifier: Apache-2.0
#include "executor/weights/class_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/number.h"

namespace arbalest {
namespace {

using Json = nlohmann::json;

constexpr const char *kClassNames = "class_names", *kOverrides = "set";

void put(Metadata& metadata, const char* entry, const std::vector<std::string>& texts) {
  metadata[entry] = Json(texts).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<std::vector<std::string>> texts_in(const Metadata& metadata, const char* entry) {
  const auto found = metadata.find(entry);
  if (found == metadata.end()) return std::nullopt;
  const Json texts = Json::parse(found->second, nullptr, false);
  const auto is_text = [](const Json& text) { return text.is_string(); };
  if (!texts.is_array() || !std::all_of(texts.begin(), texts.end(), is_text)) return std::nullopt;
  return texts.get<std::vector<std::string>>();
}

}  // namespace

void put_class_names(Metadata& metadata, const std::vector<std::string>& names) {
  if (!names.empty()) put(metadata, kClassNames, names);
}

std::vector<std::string> class_names_in(const Metadata& metadata) {
  return texts_in(metadata, kClassNames).value_or(std::vector<std::string>());
}

std::string other_classes(const std::vector<std::string>& trained, const std::vector<std::string>& names) {
  Metadata kept;  // names that are not UTF-8 are others in a file of weights
  put_class_names(kept, names);
  const std::vector<std::string> here = class_names_in(kept);
  if (trained.empty() || here.empty() || trained == here) return "";
  const auto [ours, theirs] = std::mismatch(here.begin(), here.end(), trained.begin(), trained.end());
  const auto shown = [](auto at, auto end) { return at == end ? "not there" : "'" + *at + "'"; };
  return fmt::format("class {} was {}, and is {}", ours - here.begin(), shown(theirs, trained.end()),
                     shown(ours, here.end()));
}

void put_overrides(Metadata& metadata, const std::vector<std::string>& overrides) {
  put(metadata, kOverrides, overrides);
}

std::optional<std::vector<std::string>> overrides_in(const Metadata& metadata) {
  return texts_in(metadata, kOverrides);
}

void put_number(Metadata& metadata, const std::string& name, uint64_t number) {
  metadata[name] = std::to_string(number);
}

std::optional<uint64_t> number_in(const Metadata& metadata, const std::string& name) {
  const auto found = metadata.find(name);
  return found == metadata.end() ? std::nullopt : read_number<uint64_t>(found->second);
}

}  // namespace arbalest
