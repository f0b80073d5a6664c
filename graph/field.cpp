// SPDX-License-Identifier: Apache-2.0
#include "graph/field.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "base/number.h"

namespace arbalest {
namespace {

constexpr int64_t kMostExtent = int64_t{1} << 32, kMostElements = int64_t{1} << 40;

bool is_name(std::string_view text) {
  const auto fits = [](char c) { return std::isalnum(uint8_t(c)) || c == '_'; };
  return !text.empty() && !std::isdigit(uint8_t(text[0])) && std::all_of(text.begin(), text.end(), fits);
}

// The text up to `mark`, which goes with it; the whole rest if there is none.
std::string_view take(std::string_view& rest, std::string_view mark) {
  const std::string_view part = rest.substr(0, rest.find(mark));
  rest.remove_prefix(std::min(rest.size(), part.size() + mark.size()));
  return part;
}

bool read_type(std::string_view name, DataType& type) {
  type = DataType::Token;
  const auto found =
      std::find_if(std::begin(kElementTypes), std::end(kElementTypes), [&](DataType t) { return name_of(t) == name; });
  if (found != std::end(kElementTypes)) type = *found;
  if (name == name_of(DataType::String)) type = DataType::String;
  return found != std::end(kElementTypes) || type == DataType::String;
}

// Elements of a sample; 0 if an extent is out of range or the product is.
int64_t checked_elements(const Shape& shape) {
  int64_t elements = 1;
  for (const int64_t extent : shape) {
    if (extent < 1 || extent > kMostExtent || elements > kMostElements / extent) return 0;
    elements *= extent;
  }
  return elements;
}

}  // namespace

TensorType Field::batch(int64_t samples) const {
  TensorType type{dtype, {samples}};
  type.shape.insert(type.shape.end(), shape.begin(), shape.end());
  return shape.size() == 3 ? type.in(Layout::ChannelsLast) : type;
}

std::string to_string(const Field& field) {
  return fmt::format("{} {}{}", field.name, to_string(field.sample()),
                     field.classes > 0 ? fmt::format(" of {} classes", field.classes) : "");
}

std::string to_string(const std::vector<Field>& fields) {
  std::vector<std::string> texts;
  for (const Field& field : fields) texts.push_back(to_string(field));
  return fmt::format("{}", fmt::join(texts, ", "));
}

Field parse_field(std::string_view text) {
  Field field;
  std::string_view rest = text;
  field.name = take(rest, " ");
  bool good = read_type(take(rest, "["), field.dtype);
  std::string_view extents = take(rest, "]");
  while (!extents.empty()) field.shape.push_back(read_number<int64_t>(take(extents, ",")).value_or(0));
  if (!rest.empty()) {
    constexpr std::string_view kOf = " of ", kClasses = " classes";
    good = good && rest.starts_with(kOf) && rest.ends_with(kClasses) && rest.size() > kOf.size() + kClasses.size();
    if (good) rest = rest.substr(kOf.size(), rest.size() - kOf.size() - kClasses.size());
    field.classes = good ? read_number<int64_t>(rest).value_or(0) : 0;
    good = field.classes > 0;
  }
  if (!good || to_string(field) != text) {
    throw GraphError(
        fmt::format("found field '{}', expected NAME TYPE[EXTENTS], as in 'image uint8[3,32,32]', or "
                    "NAME TYPE[EXTENTS] of N classes, as in 'label int32[] of 10 classes'",
                    text));
  }
  return field;
}

void check_fields(const std::vector<Field>& fields, const std::string& owner) {
  if (fields.empty()) throw GraphError(fmt::format("{} has no fields, expected at least one", owner));
  for (size_t f = 0; f < fields.size(); ++f) {
    const Field& field = fields[f];
    const auto refuse = [&](const std::string& expected) {
      throw GraphError(fmt::format("{}: field {} is '{}'; expected {}", owner, f + 1, to_string(field), expected));
    };
    if (!is_name(field.name)) refuse("a name of letters, digits and underscores that begins with none of the digits");
    if (field.dtype == DataType::Token) refuse("a type with elements");
    if (field.dtype == DataType::String && (!field.shape.empty() || field.classes != 0)) {
      refuse("no extents and no classes of bytes of any length");
    }
    if (checked_elements(field.shape) == 0) {
      refuse(fmt::format("extents from 1 to {}, at most {} elements in all", kMostExtent, kMostElements));
    }
    if (field.classes < 0) refuse("0 classes or more");
    if (field.classes > 0 && is_floating(field.dtype)) refuse("whole numbers where there are classes");
    for (size_t before = 0; before < f; ++before) {
      if (fields[before].name == field.name) refuse("each name once");
    }
  }
}

std::vector<Field> fields_of(const Node& prefetch) {
  std::vector<Field> fields;
  const Attribute* written = prefetch.attributes.find("fields");
  const auto texts = written ? convert(*written, AttributeKind::Strings) : std::nullopt;
  if (!texts) return fields;
  try {
    for (const std::string& text : std::get<std::vector<std::string>>(*texts)) fields.push_back(parse_field(text));
    if (!fields.empty()) check_fields(fields, "attribute 'fields'");
  } catch (const GraphError& error) {
    fail(prefetch, error.what());
  }
  return fields;
}

void set_fields(Node& prefetch, const std::vector<Field>& fields) {
  std::vector<std::string> texts;
  for (const Field& field : fields) texts.push_back(to_string(field));
  prefetch.attributes.set("fields", std::move(texts));
}

std::vector<int> fields_of_outputs(const Graph& graph, const Node& prefetch, const std::vector<Field>& fields) {
  const std::vector<ValueId>& outputs = prefetch.outputs;
  std::vector<std::string> names;
  for (const ValueId output : outputs) {
    names.push_back(output == kNone ? std::string() : graph.values[output].name);
  }
  const auto refuse = [&](const std::string& found) {
    fail(prefetch, fmt::format("{}; the fields of the source are: {}", found, to_string(fields)));
  };
  if (outputs.size() > fields.size()) {
    refuse(fmt::format("{} outputs ({}) for {} field{}", outputs.size(), fmt::join(names, ", "), fields.size(),
                       fields.size() == 1 ? "" : "s"));
  }
  const bool by_name = int_attribute(prefetch, "by_name") != 0;
  std::vector<int> chosen(outputs.size(), kNone);
  std::vector<int> user(fields.size(), kNone);
  for (size_t o = 0; o < outputs.size(); ++o) {
    if (outputs[o] == kNone) continue;
    const auto named =
        std::find_if(fields.begin(), fields.end(), [&](const Field& field) { return field.name == names[o]; });
    if (named == fields.end() && by_name) refuse(fmt::format("output '{}' is no field", names[o]));
    const auto f = named == fields.end() ? o : size_t(named - fields.begin());
    if (user[f] != kNone) {
      refuse(
          fmt::format("outputs '{}' and '{}' are both field '{}': an output named like a field is that field, and any "
                      "other is the field at its position",
                      names[size_t(user[f])], names[o], fields[f].name));
    }
    user[f] = int(o);
    chosen[o] = int(f);
  }
  return chosen;
}

}  // namespace arbalest
