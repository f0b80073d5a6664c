// SPDX-License-Identifier: Apache-2.0
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

size_t bytes_of(const Attribute& value) {
  size_t bytes = sizeof value;
  if (const auto* text = std::get_if<std::string>(&value)) bytes += text->size();
  if (const auto* integers = std::get_if<std::vector<int64_t>>(&value)) bytes += integers->size() * sizeof(int64_t);
  if (const auto* numbers = std::get_if<std::vector<double>>(&value)) bytes += numbers->size() * sizeof(double);
  if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) {
    for (const std::string& text : *texts) bytes += sizeof text + text.size();
  }
  return bytes;
}

}  // namespace

void GraphBuilder::check_attributes(const std::vector<SourceAttribute>& attributes, const std::string& owner) const {
  if (attributes.size() > kMostAttributes) {
    fail(attributes[kMostAttributes].name.place,
         fmt::format("'{}' has {} attributes, expected at most {}", owner, attributes.size(), kMostAttributes));
  }
  check_unique(attributes, fmt::format("attribute of '{}'", owner));
  for (const SourceAttribute& attribute : attributes) {
    if (!attribute.graph) continue;
    fail(attribute.name.place,
         fmt::format("attribute '{}' of '{}' is a graph, which only If takes", attribute.name.text, owner));
  }
}

void GraphBuilder::count_bytes(size_t bytes, const SourcePlace& place) {
  attribute_bytes_ += bytes;
  if (attribute_bytes_ <= kMostAttributeBytes) return;
  fail(place, fmt::format("attributes take more than {} MiB, those that calls of functions repeat counted each time",
                          kMostAttributeBytes >> 20));
}

Attributes GraphBuilder::resolve_attributes(const SourceNode& node, const Scope& scope) {
  Attributes attributes;
  for (const SourceAttribute& written : node.attributes) {
    if (written.tensor) {
      fail(written.name.place, fmt::format("attribute '{}' of '{}' is a tensor, which only Constant takes",
                                           written.name.text, node.op.text));
    }
    count_bytes(written.name.text.size(), written.name.place);
    attributes.set(written.name.text, resolve(written, scope), position(written.name.place));
    if (CallAttribute* call = passed_on(written, scope)) {
      count_bytes(sizeof(CallAttribute::Taker) + written.name.text.size(), written.name.place);
      call->takers.push_back({graph_.nodes.end_id(), written.name.text});
    }
  }
  return attributes;
}

// The value as written, or what the function's caller gave.
Attribute GraphBuilder::resolve(const SourceAttribute& written, const Scope& scope) {
  if (!written.unsupported.empty()) fail(written.name.place, written.unsupported);
  if (written.reference.empty()) {
    count_bytes(bytes_of(*written.value), written.name.place);
    return *written.value;
  }
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
  const Attribute& value = found->second.value;
  count_bytes(bytes_of(value), written.name.place);
  if (!written.kind) return value;
  return converted(value, *written.kind, written.name.place, fmt::format("attribute '{}'", written.name.text));
}

// The same for what decides how the file is read, which no override changes.
Attribute GraphBuilder::resolve_fixed(const SourceAttribute& written, const Scope& scope) {
  Attribute value = resolve(written, scope);
  if (CallAttribute* call = passed_on(written, scope)) call->fixed = true;
  return value;
}

CallAttribute* GraphBuilder::passed_on(const SourceAttribute& written, const Scope& scope) {
  const auto found = scope.attributes.find(written.reference);
  return written.reference.empty() || found == scope.attributes.end() ? nullptr : &graph_.calls[found->second.call];
}

// Notes an attribute of the call for apply_override(). Returns its place in Graph::calls.
size_t GraphBuilder::note_call(const SourceNode& node, const Scope& caller, const std::string& attribute) {
  CallAttribute call{caller.prefix + called(node).text, qualified_name(node), attribute, {}};
  check_path(call.call, called(node).place);
  count_bytes(sizeof call + call.call.size() + call.callee.size() + call.name.size(), node.op.place);
  graph_.calls.push_back(std::move(call));
  return graph_.calls.size() - 1;
}

Attribute GraphBuilder::converted(const Attribute& value, AttributeKind kind, const SourcePlace& place,
                                  const std::string& what) const {
  if (auto result = convert(value, kind)) return *result;
  fail(place, fmt::format("{} is {}, expected {}", what, to_string(value), name_of(kind)));
}

void GraphBuilder::bind_attributes(const SourceNode& call, const SourceFunction& function, const Scope& caller,
                                   Scope& scope) {
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
    const size_t noted = note_call(call, caller, given.name.text);
    if (const CallAttribute* outer = passed_on(given, caller)) {
      graph_.calls[noted].given_by = size_t(outer - graph_.calls.data());
    }
    scope.attributes.emplace(given.name.text, Scope::Bound{std::move(value), noted});
  }
  for (const SourceAttribute& wanted : function.attributes) {
    if (scope.attributes.count(wanted.name.text)) continue;
    if (!wanted.value) {
      fail(call.op.place, fmt::format("function '{}' needs attribute '{}'", name, wanted.name.text));
    }
    count_bytes(bytes_of(*wanted.value), call.op.place);
    scope.attributes.emplace(wanted.name.text, Scope::Bound{*wanted.value, note_call(call, caller, wanted.name.text)});
  }
}

}  // namespace arbalest
