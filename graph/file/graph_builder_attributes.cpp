#include "graph/file/graph_builder.h"

#include <fmt/format.h>

#include <algorithm>

namespace arbalest {
namespace {

std::vector<std::string> names_of(const std::vector<SourceAttribute>& attributes) {
  std::vector<std::string> names;
  for (const SourceAttribute& attribute : attributes) names.push_back(attribute.name.text);
  return names;
}

}  // namespace

Attributes GraphBuilder::resolve_attributes(const SourceNode& node, const Scope& scope) const {
  Attributes attributes;
  for (const SourceAttribute& written : node.attributes) {
    if (written.tensor) {
      fail(written.name.place, fmt::format("attribute '{}' of '{}' is a tensor, which only Constant takes",
                                           written.name.text, node.op.text));
    }
    attributes.set(written.name.text, resolve(written, scope), position(written.name.place));
  }
  return attributes;
}

// The value as written, or what the function's caller gave.
Attribute GraphBuilder::resolve(const SourceAttribute& written, const Scope& scope) const {
  if (!written.unsupported.empty()) fail(written.name.place, written.unsupported);
  if (written.reference.empty()) return *written.value;
  if (!scope.function) {
    fail(written.name.place,
         fmt::format("'@{}' refers to a function's attribute, outside of any function", written.reference));
  }
  const auto found = scope.attributes.find(written.reference);
  if (found == scope.attributes.end()) {
    fail(written.name.place,
         fmt::format("function '{}' has no attribute '{}'{}", scope.function->qualified_name(), written.reference,
                     did_you_mean(written.reference, names_of(scope.function->attributes))));
  }
  if (!written.kind) return found->second;
  return converted(found->second, *written.kind, written.name.place, fmt::format("attribute '{}'", written.name.text));
}

Attribute GraphBuilder::converted(const Attribute& value, AttributeKind kind, const SourcePlace& place,
                                  const std::string& what) const {
  if (auto result = convert(value, kind)) return *result;
  fail(place, fmt::format("{} is {}, expected {}", what, to_string(value), name_of(kind)));
}

void GraphBuilder::bind_attributes(const SourceNode& call, const SourceFunction& function, const Scope& caller,
                                   Scope& scope) const {
  const std::string name = function.qualified_name();
  for (const SourceAttribute& given : call.attributes) {
    const auto wanted = std::find_if(function.attributes.begin(), function.attributes.end(),
                                     [&](const auto& a) { return a.name.text == given.name.text; });
    if (wanted == function.attributes.end()) {
      fail(given.name.place, fmt::format("function '{}' has no attribute '{}'{}", name, given.name.text,
                                         did_you_mean(given.name.text, names_of(function.attributes))));
    }
    if (given.tensor)
      fail(given.name.place, fmt::format("attribute '{}' is a tensor, which only Constant takes", given.name.text));
    Attribute value = resolve(given, caller);
    std::optional<AttributeKind> kind = wanted->kind;
    if (!kind && wanted->value) kind = AttributeKind(wanted->value->index());
    if (kind) {
      value = converted(value, *kind, given.name.place,
                        fmt::format("attribute '{}' of function '{}'", given.name.text, name));
    }
    scope.attributes.emplace(given.name.text, std::move(value));
  }
  for (const SourceAttribute& wanted : function.attributes) {
    if (scope.attributes.count(wanted.name.text)) continue;
    if (!wanted.value) {
      fail(call.op.place, fmt::format("function '{}' needs attribute '{}'", name, wanted.name.text));
    }
    scope.attributes.emplace(wanted.name.text, *wanted.value);
  }
}

}  // namespace arbalest
