// SPDX-License-Identifier: Apache-2.0
#pragma once
// Attributes of a node: named literals, as ONNX has them.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/error.h"

namespace arbalest {

using Attribute =
    std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>, std::vector<std::string>>;

enum class AttributeKind : uint8_t { Int, Float, String, Ints, Floats, Strings };  // in the variant's order

std::string_view name_of(AttributeKind kind);   // "int", "float", "string", "ints", "floats", "strings"
std::string to_string(const Attribute& value);  // as a graph file writes it: 3, 0.1, "text", [1, 2]

// `value` as `kind`: integers widen to floats, a number to a list of one, an empty list to any list; nothing else
// converts.
std::optional<Attribute> convert(const Attribute& value, AttributeKind kind);

struct NamedAttribute {
  std::string name;
  Attribute value;
  Position where;
};

// In the order written; names are unique.
class Attributes {
 public:
  Attributes() = default;
  Attributes(std::initializer_list<std::pair<std::string, Attribute>> items);

  const Attribute* find(std::string_view name) const;
  const NamedAttribute* find_named(std::string_view name) const;
  void set(std::string_view name, Attribute value, Position where = {});  // replaces
  void erase(std::string_view name);
  bool empty() const { return items_.empty(); }
  auto begin() const { return items_.begin(); }
  auto end() const { return items_.end(); }

 private:
  std::vector<NamedAttribute> items_;
};

}  // namespace arbalest
