// SPDX-License-Identifier: Apache-2.0
#include "graph/attributes.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace arbalest {
namespace {

std::string quote(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    switch (c) {
      case '"': quoted += "\\\""; break;
      case '\\': quoted += "\\\\"; break;
      case '\n': quoted += "\\n"; break;
      case '\t': quoted += "\\t"; break;
      case '\r': quoted += "\\r"; break;
      default: quoted += c;
    }
  }
  return quoted + '"';
}

// The shortest decimal that reads back as the same double and as a float literal: 1.0, 0.1, 1e-05.
std::string literal(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

template <typename T, typename Format>
std::string list(const std::vector<T>& items, Format format) {
  std::string text = "[";
  for (size_t i = 0; i < items.size(); ++i) text += (i ? ", " : "") + format(items[i]);
  return text + "]";
}

}  // namespace

std::string_view name_of(AttributeKind kind) {
  static constexpr std::array<std::string_view, 6> names = {"int", "float", "string", "ints", "floats", "strings"};
  return names[size_t(kind)];
}

std::string to_string(const Attribute& value) {
  const auto number = [](int64_t n) { return std::to_string(n); };
  switch (AttributeKind(value.index())) {
    case AttributeKind::Int: return number(std::get<int64_t>(value));
    case AttributeKind::Float: return literal(std::get<double>(value));
    case AttributeKind::String: return quote(std::get<std::string>(value));
    case AttributeKind::Ints: return list(std::get<std::vector<int64_t>>(value), number);
    case AttributeKind::Floats: return list(std::get<std::vector<double>>(value), literal);
    case AttributeKind::Strings: return list(std::get<std::vector<std::string>>(value), quote);
  }
  return "";
}

std::optional<Attribute> convert(const Attribute& value, AttributeKind kind) {
  const auto from = AttributeKind(value.index());
  if (from == kind) return value;
  const int64_t* integer = std::get_if<int64_t>(&value);
  const double* number = std::get_if<double>(&value);
  const auto* integers = std::get_if<std::vector<int64_t>>(&value);
  const auto* numbers = std::get_if<std::vector<double>>(&value);
  const auto* text = std::get_if<std::string>(&value);
  const auto* texts = std::get_if<std::vector<std::string>>(&value);
  const bool no_items = (integers && integers->empty()) || (numbers && numbers->empty()) || (texts && texts->empty());
  switch (kind) {
    case AttributeKind::Float:
      if (integer) return double(*integer);
      break;
    case AttributeKind::Ints:
      if (integer) return std::vector<int64_t>{*integer};
      if (no_items) return std::vector<int64_t>{};
      break;
    case AttributeKind::Floats:
      if (integer) return std::vector<double>{double(*integer)};
      if (number) return std::vector<double>{*number};
      if (integers) return std::vector<double>(integers->begin(), integers->end());
      if (no_items) return std::vector<double>{};
      break;
    case AttributeKind::Strings:
      if (text) return std::vector<std::string>{*text};
      if (no_items) return std::vector<std::string>{};
      break;
    default: break;
  }
  return std::nullopt;
}

Attributes::Attributes(std::initializer_list<std::pair<std::string, Attribute>> items) {
  for (const auto& [name, value] : items) set(name, value);
}

const NamedAttribute* Attributes::find_named(std::string_view name) const {
  const auto found = std::find_if(items_.begin(), items_.end(), [&](const auto& item) { return item.name == name; });
  return found == items_.end() ? nullptr : &*found;
}

const Attribute* Attributes::find(std::string_view name) const {
  const NamedAttribute* found = find_named(name);
  return found ? &found->value : nullptr;
}

void Attributes::set(std::string_view name, Attribute value, Position where) {
  for (NamedAttribute& item : items_) {
    if (item.name == name) {
      item.value = std::move(value);
      item.where = std::move(where);
      return;
    }
  }
  items_.push_back({std::string(name), std::move(value), std::move(where)});
}

void Attributes::erase(std::string_view name) {
  std::erase_if(items_, [&](const auto& item) { return item.name == name; });
}

}  // namespace arbalest
