// SPDX-License-Identifier: Apache-2.0
#include "graph/file/overrides.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/number.h"
#include "base/other_names.h"
#include "graph/file/lexer.h"
#include "graph/op.h"

namespace arbalest {
namespace {

bool is_upper(char c) {
  return c >= 'A' && c <= 'Z';
}
char lower(char c) {
  return is_upper(c) ? char(c - 'A' + 'a') : c;
}

// "ConvBnRelu" → "conv_bn_relu"
std::string snake_case_of(std::string_view name) {
  std::string snake;
  for (size_t i = 0; i < name.size(); ++i) {
    const bool word_starts = i > 0 && is_upper(name[i]) && !is_upper(name[i - 1]);
    if (word_starts) snake += '_';
    snake += lower(name[i]);
  }
  return snake;
}

std::string first_output(const Graph& graph, const Node& node) {
  const auto first = std::find_if(node.outputs.begin(), node.outputs.end(), [](ValueId id) { return id != kNone; });
  return first == node.outputs.end() ? node.name : graph.values[*first].name;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

class Override {
 public:
  Override(std::string_view assignment, std::string_view option) : assignment_(assignment), option_(option) {
    const size_t equals = assignment.find('=');
    const size_t dot = assignment.substr(0, equals).rfind('.');
    if (equals == std::string_view::npos || dot == std::string_view::npos) fail("expected NODE.ATTRIBUTE=VALUE");
    target_ = trim(assignment.substr(0, dot));
    attribute_ = trim(assignment.substr(dot + 1, equals - dot - 1));
    value_ = trim(assignment.substr(equals + 1));
    if (target_.empty() || attribute_.empty()) fail("expected NODE.ATTRIBUTE=VALUE");
  }

  // That of a node which has the attribute by itself; otherwise the attribute that a call passes on, in all nodes that
  // take it.
  std::vector<OverrideTarget> targets(const Graph& graph) const {
    const auto call = std::find_if(graph.calls.begin(), graph.calls.end(), [&](const CallAttribute& each) {
      return each.call == target_ && each.name == attribute_;
    });
    if (call == graph.calls.end()) return {{find_node(graph), std::string(attribute_)}};
    const std::vector<size_t> passed = passed_on(graph, size_t(call - graph.calls.begin()));
    std::vector<OverrideTarget> takers;
    for (const size_t i : passed) {
      for (const CallAttribute::Taker& taker : graph.calls[i].takers) takers.push_back({taker.node, taker.attribute});
    }
    const std::vector<NodeId> named = nodes_named(graph);
    const OverrideTarget own = {named.size() == 1 ? named[0] : NodeId(kNone), std::string(attribute_)};
    const bool has = own.node != kNone && graph.nodes[own.node].op->attribute_spec(attribute_);
    if (has && std::find(takers.begin(), takers.end(), own) == takers.end()) return {own};
    for (const size_t i : passed) refuse_fixed(graph.calls[i]);
    if (takers.empty()) {
      fail(fmt::format("no node of the call '{}' ({}) takes its attribute '{}'", call->call, call->callee, call->name));
    }
    return takers;
  }

  std::string apply(Graph& graph) const {
    std::string earlier;
    bool changes = false;
    for (const auto& [id, attribute] : targets(graph)) {
      Node& node = graph.nodes[id];
      const AttributeSpec* spec = node.op->attribute_spec(attribute);
      if (!spec) refuse_attribute(graph, node);
      const NamedAttribute* written = node.attributes.find_named(attribute);
      const std::optional<Attribute> before = written ? convert(written->value, spec->kind) : spec->fallback;
      if (written && is_override(*written)) earlier = written->where.file;
      const Attribute value = parse(spec->kind);
      node.attributes.set(attribute, value, Position{place(), 0, 0});
      changes = changes || before != value;
    }
    if (!earlier.empty()) return fmt::format("{}: replaces {}", place(), earlier);
    return changes ? "" : fmt::format("{}: changes nothing, the graph has that value already", place());
  }

 private:
  // The places of the call's attribute, and of those that take its value. Calls come after those that enclose them.
  static std::vector<size_t> passed_on(const Graph& graph, size_t first) {
    std::vector<size_t> passed = {first};
    std::vector<bool> takes(graph.calls.size(), false);
    takes[first] = true;
    for (size_t i = first + 1; i < graph.calls.size(); ++i) {
      const std::optional<size_t> by = graph.calls[i].given_by;
      takes[i] = by && takes[*by];
      if (takes[i]) passed.push_back(i);
    }
    return passed;
  }

  void refuse_fixed(const CallAttribute& call) const {
    if (!call.fixed) return;
    fail(
        fmt::format("attribute '{}' of the call '{}' ({}) says how the graph's file is read; expected another "
                    "attribute, or the change in the file",
                    call.name, call.call, call.callee));
  }

  [[noreturn]] void refuse_attribute(const Graph& graph, const Node& node) const {
    std::string owner = node.op->qualified_name();
    std::vector<std::string> known, of_call;
    for (const AttributeSpec& each : node.op->attributes) known.push_back(each.name);
    for (const CallAttribute& call : graph.calls) {
      if (call.call == target_) of_call.push_back(call.name);
      if (call.call == target_) owner = call.callee;
    }
    if (!of_call.empty()) known = of_call;
    const std::string own = own_name(attribute_, known);
    fail(fmt::format("{} has no attribute '{}'; it has: {}{}", owner, attribute_,
                     known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", ")),
                     own.empty() ? did_you_mean(attribute_, known) : fmt::format("; did you mean '{}'?", own)));
  }

  std::string place() const { return fmt::format("{} {}", option_, assignment_); }
  [[noreturn]] void fail(const std::string& message) const { throw GraphError(Position{place(), 0, 0}, message); }

  // The node of this name; if there is none, those of the operator.
  std::vector<NodeId> nodes_named(const Graph& graph) const {
    std::vector<NodeId> matches;
    for (const NodeId n : graph.nodes.ids()) {
      const Node& node = graph.nodes[n];
      if (first_output(graph, node) == target_ || node.name == target_) return {n};
      if (snake_case_of(node.op->name) == target_) matches.push_back(n);
    }
    return matches;
  }

  NodeId find_node(const Graph& graph) const {
    const std::vector<NodeId> matches = nodes_named(graph);
    if (matches.size() == 1) return matches[0];
    if (matches.empty()) {
      std::vector<std::string> known;
      for (const Node& node : graph.nodes) {
        const std::string op = snake_case_of(node.op->name);
        known.push_back(first_output(graph, node));
        if (std::find(known.begin(), known.end(), op) == known.end()) known.push_back(op);
      }
      fail(fmt::format("the graph has no node '{}' and no operator of that name{}", target_,
                       did_you_mean(target_, known)));
    }
    std::vector<std::string> candidates;
    for (const NodeId id : matches) candidates.push_back(first_output(graph, graph.nodes[id]));
    constexpr size_t kMost = 20;
    const bool cut = candidates.size() > kMost;
    if (cut) candidates.resize(kMost);
    fail(fmt::format("{} nodes apply '{}'; name one by its first output: {}{}", matches.size(), target_,
                     fmt::join(candidates, ", "), cut ? ", …" : ""));
  }

  Attribute parse(AttributeKind kind) const {
    switch (kind) {
      case AttributeKind::Int: return number<int64_t>(value_);
      case AttributeKind::Float: return number<double>(value_);
      case AttributeKind::String: return text(value_);
      case AttributeKind::Ints: return list<int64_t>([&](auto item) { return number<int64_t>(item); });
      case AttributeKind::Floats: return list<double>([&](auto item) { return number<double>(item); });
      case AttributeKind::Strings: return list<std::string>([&](auto item) { return text(item); });
    }
    return {};
  }

  template <typename T>
  T number(std::string_view item) const {
    if (const auto parsed = read_number<T>(item)) return *parsed;
    fail(fmt::format("found '{}', expected {}", item, std::is_integral_v<T> ? "a whole number" : "a number"));
  }

  // As it is, or a literal of the graph file if it is one whole quoted string.
  std::string text(std::string_view item) const {
    if (item.empty() || item.front() != '"') return std::string(item);
    const std::string source = place();
    Lexer lexer(item, source);
    const Token token = lexer.next();
    return lexer.next().kind == Token::Kind::End ? lexer.decode(token) : std::string(item);
  }

  // [1, 2], 1,2, or nothing at all for an empty list. Commas inside quotes do not separate.
  template <typename T, typename Parse>
  std::vector<T> list(Parse parse_item) const {
    std::string_view rest = value_;
    if (rest.starts_with('[')) {
      if (!rest.ends_with(']') || rest.size() < 2) fail(fmt::format("found '{}', expected ']' at the end", value_));
      rest = rest.substr(1, rest.size() - 2);
    }
    std::vector<T> items;
    if (trim(rest).empty()) return items;
    size_t from = 0;
    bool in_quotes = false;
    for (size_t i = 0; i <= rest.size(); ++i) {
      if (i < rest.size() && rest[i] == '"') in_quotes = !in_quotes;
      if (i < rest.size() && (rest[i] != ',' || in_quotes)) continue;
      items.push_back(parse_item(trim(rest.substr(from, i - from))));
      from = i + 1;
    }
    return items;
  }

  std::string_view assignment_, option_, target_, attribute_, value_;
};

}  // namespace

std::string apply_override(Graph& graph, std::string_view assignment, std::string_view option) {
  return Override(assignment, option).apply(graph);
}

std::vector<OverrideTarget> override_targets(const Graph& graph, std::string_view assignment, std::string_view option) {
  return Override(assignment, option).targets(graph);
}

void refuse_two_names(const Graph& graph, const std::vector<NamedAssignment>& assignments, std::string_view option) {
  std::map<std::pair<NodeId, std::string>, std::string> names;  // by node and attribute
  for (const NamedAssignment& each : assignments) {
    for (const OverrideTarget& target : override_targets(graph, each.assignment, option)) {
      const auto [first, added] = names.emplace(std::pair(target.node, target.attribute), each.name);
      if (added) continue;
      throw GraphError(fmt::format("{} and {} both change the attribute '{}' of node '{}'; expected one of them",
                                   first->second, each.name, target.attribute, graph.nodes[target.node].name));
    }
  }
}

bool is_override(const NamedAttribute& attribute) {
  return attribute.where.file.starts_with(name_of(SettingKey::Set) + " ");
}

Table<NodeId, std::string> override_names(const Graph& graph) {
  std::map<std::string, int> count;  // of nodes that a name may mean
  for (const Node& node : graph.nodes) {
    ++count[snake_case_of(node.op->name)];
    ++count[first_output(graph, node)];
  }
  Table<NodeId, std::string> names;
  for (const Node& node : graph.nodes) {
    const std::string op = snake_case_of(node.op->name), output = first_output(graph, node);
    names.push_back(count[op] == (op == output ? 2 : 1) ? op : output);
  }
  return names;
}

}  // namespace arbalest
