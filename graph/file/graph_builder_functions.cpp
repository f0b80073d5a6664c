// SPDX-License-Identifier: Apache-2.0
#include "graph/file/graph_builder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace arbalest {
namespace {

constexpr int kDeepest = 64;

}  // namespace

void GraphBuilder::inline_function(const SourceNode& call, const SourceFunction& function, Scope& caller) {
  check_nesting(call, function, caller);
  Scope scope;
  scope.caller = &caller;
  scope.function = &function;
  scope.depth = caller.depth + 1;
  // Not the full name of the output: if that is the caller's result, its values' names would meet the caller's
  // own.
  scope.prefix = caller.prefix + called(call).text + "/";
  bind_attributes(call, function, caller, scope);
  bind_operands(call, function, caller, scope);
  for (const SourceValue& value : function.values) {
    if (value.data) add_initializer(value, scope);
  }
  for (const SourceNode& node : function.nodes) add(node, scope);
  for (const SourceValue& value : function.values) {
    if (!value.data) declare(value, scope);
  }
  for (size_t i = 0; i < function.outputs.size(); ++i) {
    const ValueId id = declare(function.outputs[i], scope);
    if (i < call.outputs.size() && !call.outputs[i].text.empty()) bind_result(call, i, id, caller);
  }
}

void GraphBuilder::bind_result(const SourceNode& call, size_t output, ValueId id, Scope& caller) {
  const SourceName& name = call.outputs[output];
  if (!caller.values.emplace(name.text, id).second) {
    fail(name.place, at(name.place, &call) + fmt::format("value '{}' is defined twice", name.text));
  }
}

void GraphBuilder::fail_cycle(const SourceNode& call, const SourceFunction& function, const Scope& caller) const {
  std::vector<std::string> path = {function.qualified_name()};
  for (const Scope* scope = &caller; scope->function; scope = scope->caller) {
    path.push_back(scope->function->qualified_name());
    if (scope->function == &function) break;
  }
  std::reverse(path.begin(), path.end());
  fail(call.op.place, fmt::format("function '{}' calls itself: {}", path.back(), fmt::join(path, " → ")));
}

void GraphBuilder::check_nesting(const SourceNode& call, const SourceFunction& function, const Scope& caller) {
  for (const Scope* scope = &caller; scope; scope = scope->caller) {
    if (scope->function == &function) fail_cycle(call, function, caller);
  }
  if (caller.depth >= kDeepest) {
    fail(call.op.place, fmt::format("functions are nested more than {} deep", kDeepest));
  }
  // A call counts even if the function is empty, so that the work is bounded.
  if (++calls_ > kMostNodes) fail(call.op.place, fmt::format("more than {} calls of functions", kMostNodes));
}

void GraphBuilder::bind_operands(const SourceNode& call, const SourceFunction& function, const Scope& caller,
                                 Scope& scope) const {
  const auto check_count = [&](size_t given, size_t most, std::string_view what) {
    if (given <= most) return;
    fail(call.op.place, fmt::format("{} {}s given to function '{}', expected at most {}", given, what,
                                    function.qualified_name(), most));
  };
  check_count(call.inputs.size(), function.inputs.size(), "input");
  check_count(call.outputs.size(), function.outputs.size(), "output");
  for (size_t i = 0; i < function.inputs.size(); ++i) {
    const bool given = i < call.inputs.size() && !call.inputs[i].text.empty();
    scope.values.emplace(function.inputs[i].name.text, given ? find(call.inputs[i], caller, "input", &call) : kNone);
  }
  for (size_t i = 0; i < function.outputs.size(); ++i) {
    const SourceName& output = function.outputs[i].name;
    if (scope.values.count(output.text)) {
      fail(output.place, fmt::format("function '{}' returns its input '{}'; pass it through Identity",
                                     function.qualified_name(), output.text));
    }
    if (i < call.outputs.size() && !call.outputs[i].text.empty()) {
      scope.results.emplace(output.text, full_name(call.outputs[i].text, caller));
    }
  }
}

}  // namespace arbalest
