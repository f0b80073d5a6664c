// SPDX-License-Identifier: Apache-2.0
#include "graph/file/sequences.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <unordered_map>
#include <unordered_set>

namespace arbalest {
namespace {

using Ints = std::vector<int64_t>;

bool is(const SourceNode& node, std::string_view op) {
  return (node.domain.empty() || node.domain == "ai.onnx") && node.op.text == op && node.outputs.size() == 1;
}

const SourceAttribute* attribute(const SourceNode& node, std::string_view name) {
  const auto found = std::find_if(node.attributes.begin(), node.attributes.end(),
                                  [&](const SourceAttribute& each) { return each.name.text == name; });
  return found == node.attributes.end() ? nullptr : &*found;
}

int64_t integer(const SourceNode& node, std::string_view name, int64_t otherwise) {
  const SourceAttribute* found = attribute(node, name);
  const auto* number = found && found->value ? std::get_if<int64_t>(&*found->value) : nullptr;
  return number ? *number : otherwise;
}

// Integers that a constant holds, and whether it is a single one.
struct Constant {
  Ints numbers;
  bool scalar;
};

std::optional<Constant> constant_of(const TensorType& type, const std::vector<std::byte>& data) {
  if (type.shape.size() > 1 || (type.dtype != DataType::Int64 && type.dtype != DataType::Int32)) return std::nullopt;
  Constant constant{Ints(size_t(type.elements())), type.shape.empty()};
  for (size_t i = 0; i < constant.numbers.size(); ++i) {
    int32_t narrow = 0;
    if (type.dtype == DataType::Int64) {
      std::memcpy(&constant.numbers[i], data.data() + i * sizeof(int64_t), sizeof(int64_t));
    } else {
      std::memcpy(&narrow, data.data() + i * sizeof narrow, sizeof narrow);
      constant.numbers[i] = narrow;
    }
  }
  return constant;
}

std::optional<Constant> constant_of(const SourceNode& node) {
  if (!is(node, "Constant") || node.attributes.size() != 1) return std::nullopt;
  const SourceAttribute& only = node.attributes[0];
  if (only.tensor) return constant_of(only.tensor->type, *only.tensor->data);
  if (!only.value) return std::nullopt;
  if (const auto* number = std::get_if<int64_t>(&*only.value))
    return Constant{{*number}, only.name.text == "value_int"};
  if (const auto* list = std::get_if<Ints>(&*only.value)) return Constant{*list, false};
  return std::nullopt;
}

SourceNode node_of(const SourceNode& at, const char* op, std::vector<SourceName> inputs, SourceName output,
                   std::vector<std::pair<const char*, Attribute>> attributes = {}) {
  SourceNode node;
  node.op = {op, at.op.place};
  node.inputs = std::move(inputs);
  node.outputs = {std::move(output)};
  for (auto& [name, value] : attributes) {
    SourceAttribute& added = node.attributes.emplace_back();
    added.name = {name, at.op.place};
    added.value = std::move(value);
  }
  return node;
}

class Sequences {
 public:
  explicit Sequences(GraphSource& source) : source_(source) {
    for (auto* values : {&source.inputs, &source.values}) {
      for (const SourceValue& value : *values) {
        if (value.data && value.type) note(value.name.text, constant_of(*value.type, *value.data));
      }
    }
    for (const SourceNode& node : source.nodes) {
      if (node.outputs.size() == 1) note(node.outputs[0].text, constant_of(node));
      if (is(node, "Concat")) lists_.insert(node.outputs[0].text);
    }
  }

  void run() {
    find_makers();
    if (makers_.empty()) return;
    drop_what_others_read();
    std::vector<SourceNode> nodes = std::move(source_.nodes);
    source_.nodes.clear();
    for (SourceNode& node : nodes) {
      if (const Maker* maker = made_by(node)) {
        add_parts(*maker);
      } else if (const Maker* read = read_by(node)) {
        add_reader(node, *read);
      } else {
        source_.nodes.push_back(std::move(node));
      }
    }
  }

 private:
  // A node that makes a sequence. For SplitToSequence, `sizes` holds the sizes of the parts, or one size for all, which
  // may be `computed` of shapes.
  struct Maker {
    SourceNode node;
    bool splits;
    bool computed = false;
    std::optional<Constant> sizes = {};  // none otherwise: each part is one index, without the axis unless `keepdims`
  };

  void note(const std::string& name, std::optional<Constant> constant) {
    if (constant) constants_.emplace(name, std::move(*constant));
  }

  void find_makers() {
    for (const SourceNode& node : source_.nodes) {
      const bool splits = is(node, "SplitToSequence");
      if (!splits && !is(node, "SequenceConstruct")) continue;
      Maker maker{node, splits};
      if (splits && node.inputs.size() > 1 && !node.inputs[1].text.empty()) {
        const auto sizes = constants_.find(node.inputs[1].text);
        if (sizes != constants_.end() && sizes->second.numbers.empty()) continue;
        maker.computed = sizes == constants_.end();
        if (maker.computed && lists_.contains(node.inputs[1].text)) continue;
        if (!maker.computed) maker.sizes = sizes->second;
      }
      makers_.emplace(node.outputs[0].text, std::move(maker));
    }
  }

  void drop_what_others_read() {
    for (const SourceValue& output : source_.outputs) makers_.erase(output.name.text);
    for (const SourceNode& node : source_.nodes) {
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        const auto maker = makers_.find(node.inputs[i].text);
        if (maker != makers_.end() && (i > 0 || !can_read(node, maker->second))) makers_.erase(maker);
      }
    }
  }

  bool can_read(const SourceNode& node, const Maker& maker) const {
    if (is(node, "ConcatFromSequence")) return !maker.splits;
    if (!is(node, "SequenceAt") || node.inputs.size() != 2) return false;
    const auto at = constants_.find(node.inputs[1].text);
    return at != constants_.end() && at->second.numbers.size() == 1 && place_of(node, maker) >= 0;
  }

  // Counted from the first; -1: past the ends, or unknown.
  int64_t place_of(const SourceNode& node, const Maker& maker) const {
    const int64_t at = constants_.at(node.inputs[1].text).numbers[0];
    const bool counted = !maker.splits || (maker.sizes && !maker.sizes->scalar);
    if (!counted) return at;
    const auto count = int64_t(maker.splits ? maker.sizes->numbers.size() : maker.node.inputs.size());
    const int64_t place = at < 0 ? at + count : at;
    return place < count ? place : -1;
  }

  const Maker* made_by(const SourceNode& node) const {
    if (node.outputs.size() != 1) return nullptr;
    const auto found = makers_.find(node.outputs[0].text);
    return found == makers_.end() ? nullptr : &found->second;
  }
  const Maker* read_by(const SourceNode& node) const {
    if (node.inputs.empty()) return nullptr;
    const auto found = makers_.find(node.inputs[0].text);
    return found == makers_.end() ? nullptr : &found->second;
  }

  static SourceName part_name(const Maker& maker, int64_t place) {
    return {fmt::format("{}.{}", maker.node.outputs[0].text, place), maker.node.op.place};
  }

  // Adds one Split that makes all parts, if their sizes are listed.
  void add_parts(const Maker& maker) {
    if (!maker.splits || !maker.sizes || maker.sizes->scalar) return;
    SourceNode split = node_of(maker.node, "Split", {maker.node.inputs[0]}, part_name(maker, 0),
                               {{"axis", integer(maker.node, "axis", 0)}, {"split", maker.sizes->numbers}});
    for (size_t i = 1; i < maker.sizes->numbers.size(); ++i) split.outputs.push_back(part_name(maker, int64_t(i)));
    source_.nodes.push_back(std::move(split));
  }

  void add_reader(const SourceNode& node, const Maker& maker) {
    if (is(node, "ConcatFromSequence")) return add_concat(node, maker);
    const int64_t place = place_of(node, maker);
    if (!maker.splits) return add(node, "Identity", {maker.node.inputs[size_t(place)]}, node.outputs[0]);
    if (maker.sizes && !maker.sizes->scalar) return add(node, "Identity", {part_name(maker, place)}, node.outputs[0]);
    if (maker.computed) return add_computed(node, maker, place);
    const int64_t axis = integer(maker.node, "axis", 0), size = maker.sizes ? maker.sizes->numbers[0] : 1;
    const bool squeezed = !maker.sizes && integer(maker.node, "keepdims", 1) == 0;
    const SourceName part = squeezed ? SourceName{node.outputs[0].text + ".part", node.op.place} : node.outputs[0];
    add(node, "Slice", {maker.node.inputs[0]}, part,
        {{"axes", Ints{axis}}, {"starts", Ints{place * size}}, {"ends", Ints{(place + 1) * size}}});
    if (squeezed) add(node, "Squeeze", {part}, node.outputs[0], {{"axes", Ints{axis}}});
  }

  // A part between multiples of one size, which follows from shapes that are known once the batch is.
  void add_computed(const SourceNode& node, const Maker& maker, int64_t place) {
    const auto bound = [&](const char* name, int64_t times) {
      const auto named = [&](const char* of) {
        return SourceName{fmt::format("{}.{}{}", node.outputs[0].text, name, of), node.op.place};
      };
      add(node, "Constant", {}, named(".times"), {{"value_ints", Ints{times}}});
      add(node, "Mul", {{node.outputs[0].text + ".size", node.op.place}, named(".times")}, named(""));
      return named("");
    };
    add(node, "Cast", {maker.node.inputs[1]}, {node.outputs[0].text + ".size", node.op.place},
        {{"to", onnx_number(DataType::Int64)}});
    const SourceName starts = bound("starts", place), ends = bound("ends", place + 1);
    const SourceName axes{node.outputs[0].text + ".axes", node.op.place};
    add(node, "Constant", {}, axes, {{"value_ints", Ints{integer(maker.node, "axis", 0)}}});
    add(node, "Slice", {maker.node.inputs[0], starts, ends, axes}, node.outputs[0]);
  }

  void add_concat(const SourceNode& node, const Maker& maker) {
    const int64_t axis = integer(node, "axis", 0);
    std::vector<SourceName> parts = maker.node.inputs;
    if (integer(node, "new_axis", 0) != 0) {
      for (size_t i = 0; i < parts.size(); ++i) {
        const SourceName part{fmt::format("{}.{}", node.outputs[0].text, i), node.op.place};
        add(node, "Unsqueeze", {parts[i]}, part, {{"axes", Ints{axis}}});
        parts[i] = part;
      }
    }
    add(node, "Concat", std::move(parts), node.outputs[0], {{"axis", axis}});
  }

  void add(const SourceNode& at, const char* op, std::vector<SourceName> inputs, SourceName output,
           std::vector<std::pair<const char*, Attribute>> attributes = {}) {
    source_.nodes.push_back(node_of(at, op, std::move(inputs), std::move(output), std::move(attributes)));
  }

  GraphSource& source_;
  std::unordered_map<std::string, Constant> constants_;
  std::unordered_set<std::string> lists_;          // names of lists that a Concat makes
  std::unordered_map<std::string, Maker> makers_;  // by the sequence's name
};

}  // namespace

void take_sequences_apart(GraphSource& source) {
  Sequences(source).run();
}

}  // namespace arbalest
