// SPDX-License-Identifier: Apache-2.0
#include "passes/fuse/attention_masks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>

#include "graph/constants.h"

namespace arbalest {
namespace {

constexpr int kDepth = 32;  // nodes that two biases have alike are looked for so far back
constexpr float kHidden = -std::numeric_limits<float>::infinity();
// A bias that leaves no weight to a key as long as a row has others, and is finite in each element type.
constexpr float kLeast = -1e30f;

template <typename T>
std::vector<T> elements_of(const std::vector<std::byte>& content) {
  std::vector<T> elements(content.size() / sizeof(T));
  std::memcpy(elements.data(), content.data(), elements.size() * sizeof(T));
  return elements;
}

// Leaves one of the equal parts along the first axes of a bias.
void leave_one(Shape& shape, std::vector<float>& numbers) {
  for (size_t axis = 0; axis + 2 < shape.size(); ++axis) {
    const size_t part = numbers.size() / size_t(shape[axis]);  // axes before have one element
    for (size_t i = part; i < numbers.size(); ++i) {
      if (numbers[i] != numbers[i - part]) return;
    }
    numbers.resize(part);
    shape[axis] = 1;
  }
}

// Whether the bias hides all keys after each row and does nothing else.
bool is_causal(const Shape& shape, const std::vector<float>& numbers) {
  const size_t keys = size_t(shape.back());
  if (shape.size() < 2 || shape[shape.size() - 2] != shape.back() || numbers.size() != keys * keys) return false;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] != (i % keys > i / keys ? kLeast : 0)) return false;
  }
  return true;
}

}  // namespace

bool AttentionMasks::leaves_some(const ScoreSummand& summand) const {
  const TensorType& type = rewriter_.value(summand.condition).type;
  const auto content = content_of(graph_, summand.condition);
  if (!content || type.dtype != DataType::Bool || type.shape.empty() || type.elements() == 0) return false;
  const std::byte hidden{uint8_t(summand.hidden_if)};
  const ptrdiff_t row = type.shape.back();
  for (auto first = content->begin(); first != content->end(); first += row) {
    if (std::all_of(first, first + row, [&](std::byte each) { return each == hidden; })) return false;
  }
  return true;
}

ValueId AttentionMasks::constant(const std::string& name, const Shape& shape, const std::vector<float>& numbers) {
  const TensorType type{DataType::Float32, shape};
  std::string key = fmt::format("{} {} ", to_string(type), numbers.size());
  key.append(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float));
  const auto [found, first] = first_.try_emplace(std::move(key), kNone);
  if (first) {
    found->second = graph_.add_value(name, type, Role::Constant);
    graph_.values[found->second].initializer = data_of(numbers);
  }
  return found->second;
}

ValueId AttentionMasks::number(float content) {
  return constant(fmt::format("attention.{}", content), {}, {content});
}

// The node's operator, attributes and inputs; empty if others may not stand for it.
std::string AttentionMasks::key_of(const Node& node, int depth) {
  if (node.outputs.size() != 1 || node.op->random || node.op->side_effect) return "";
  std::string key(node.op->qualified_name());
  for (const NamedAttribute& each : node.attributes) key += fmt::format(" {}={}", each.name, to_string(each.value));
  for (const ValueId input : node.inputs) {
    key += fmt::format(" {}", int(input == kNone ? input : same(input, depth)));
  }
  return key;
}

// The first value met that is computed as this one is, by nodes as far back as `depth`.
ValueId AttentionMasks::same(ValueId value, int depth) {
  if (depth == 0) return value;
  if (const auto found = same_.find(value); found != same_.end()) return found->second;
  const Value& own = rewriter_.value(value);
  std::string key;
  if (const auto content = content_of(graph_, value)) {
    key = to_string(own.type) + " ";
    key.append(reinterpret_cast<const char*>(content->data()), content->size());
  } else if (own.producer != kNone) {
    key = key_of(rewriter_.node(own.producer), depth - 1);
  }
  const ValueId first = key.empty() ? value : first_.try_emplace(std::move(key), value).first->second;
  return same_[value] = first;
}

// The result of a new node, or the same one made before.
ValueId AttentionMasks::once(NodeId at, std::string_view op, const std::vector<ValueId>& inputs,
                             Attributes attributes) {
  const std::string name = fmt::format("{}.{}", rewriter_.value(inputs.front()).name, op);
  const ValueId made = rewriter_.add_before(at, op, name, inputs, std::move(attributes));
  infer_content(graph_, rewriter_.value(made).producer);
  const ValueId first = same(made, kDepth);
  if (first != made) rewriter_.remove(rewriter_.value(made).producer);
  return first;
}

// A bias whose content is known, without infinity and without parts that are the same; none if a row has no key.
std::optional<ScoreBias> AttentionMasks::known(ValueId bias, const std::vector<float>& numbers) {
  Shape shape = rewriter_.shape(bias);
  for (auto row = numbers.begin(); row != numbers.end(); row += shape.back()) {
    if (std::all_of(row, row + shape.back(), [](float each) { return each == kHidden; })) return std::nullopt;
  }
  std::vector<float> finite = numbers;
  for (float& each : finite) each = std::max(each, kLeast);  // NaN stays
  leave_one(shape, finite);
  if (std::all_of(finite.begin(), finite.end(), [](float each) { return each == 0; })) return ScoreBias{};
  const bool causal = is_causal(shape, finite);
  if (finite == numbers) return ScoreBias{bias, kNone, causal};
  return ScoreBias{constant(rewriter_.value(bias).name + ".finite", shape, finite), kNone, causal};
}

ScoreBias AttentionMasks::join(NodeId at, const std::vector<ScoreSummand>& summands, const Shape& scores,
                               bool guarded) {
  ValueId bias = kNone;
  for (const ScoreSummand& each : summands) {
    ValueId added = each.bias;
    if (each.condition != kNone) {
      const ValueId hidden = number(kHidden), left = number(0);
      added = once(at, op::Where, {each.condition, each.hidden_if ? hidden : left, each.hidden_if ? left : hidden});
    }
    bias = bias == kNone ? same(added, kDepth) : once(at, op::Add, {bias, added});
  }
  if (bias == kNone) return {};
  const Shape rows(scores.end() - 2, scores.end());
  const Shape& own = rewriter_.shape(bias);
  if (own.size() < 2 || !std::equal(rows.begin(), rows.end(), own.end() - 2)) {
    bias = once(at, op::Expand, {bias}, {{"shape", rows}});
  }
  const auto content = content_of(graph_, bias);
  if (content && rewriter_.value(bias).type.dtype == DataType::Float32 && !content->empty()) {
    if (const auto found = known(bias, elements_of<float>(*content))) return *found;
  }
  if (!guarded) return {bias, kNone};
  const ValueId greatest =
      once(at, op::ReduceMax, {bias}, {{"axes", std::vector<int64_t>{-1}}, {"keepdims", int64_t{1}}});
  const ValueId alive = once(at, op::Greater, {greatest, number(kHidden)}),
                finite = once(at, op::Clip, {bias}, {{"min", double(kLeast)}});
  return {once(at, op::Where, {alive, finite, number(0)}), alive};
}

ValueId AttentionMasks::turned(NodeId at, ValueId alive, int64_t head_axis) {
  const Shape shape = rewriter_.shape(alive);
  if (head_axis == 1) return alive;
  if (shape.size() < 4) {
    const int64_t heads = shape.size() < 3 ? 1 : shape[0];
    alive = once(at, op::Reshape, {alive}, {{"shape", Shape{1, heads, shape[shape.size() - 2], 1}}});
  }
  return once(at, op::Transpose, {alive}, {{"perm", std::vector<int64_t>{0, 2, 1, 3}}});
}

}  // namespace arbalest
