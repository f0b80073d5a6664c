// SPDX-License-Identifier: Apache-2.0

// RotaryEmbedding, ONNX's: pairs of a head's elements are turned by angles that follow from the row's position. It
// becomes products and sums with the cosines and sines of these angles.

#include <fmt/format.h>

#include "ops/definition.h"

namespace arbalest {
namespace {

using Ints = std::vector<int64_t>;

struct RotaryInput {
  enum : size_t { X, Cosines, Sines, Positions };
};

// Extents of X, (samples, heads, rows, depth) or (samples, rows, heads · depth), and the pairs that are turned.
struct RotaryExtents {
  int64_t samples, heads, rows, depth, pairs;
};

RotaryExtents rotary_extents(const Node& node, const TensorType& x) {
  const bool apart = x.shape.size() == 4;
  const int64_t heads = apart ? x.shape[1] : int_attribute(node, "num_heads");
  if (heads < 1 || (!apart && x.shape[2] % heads != 0)) {
    fail(node, fmt::format("attribute 'num_heads' is {}; expected a divisor of the last axis of 'X', {}", heads,
                           to_string(x)));
  }
  const int64_t depth = apart ? x.shape[3] : x.shape[2] / heads, stated = int_attribute(node, "rotary_embedding_dim");
  const int64_t turned = stated == 0 ? depth : stated;
  if (turned < 2 || turned > depth || turned % 2 != 0) {
    fail(node, fmt::format("{} elements of a head are turned; expected an even number up to {}, those it has", turned,
                           depth));
  }
  return {x.shape[0], heads, x.shape[apart ? 2 : 1], depth, turned / 2};
}

void infer_rotary_embedding(InferContext& context) {
  using In = RotaryInput;
  const TensorType& x = floating_input(context, In::X, {3, 4});
  flag_attribute(context.node(), "interleaved");
  const RotaryExtents extents = rotary_extents(context.node(), x);
  const bool positions = context.has_input(In::Positions);
  if (positions) {
    const TensorType& places = context.input(In::Positions);
    const bool whole = places.dtype == DataType::Int64 || places.dtype == DataType::Int32;
    if (!whole || places.shape != Shape{extents.samples, extents.rows}) {
      context.fail(fmt::format("input 'position_ids' is {}; expected whole numbers, [{}, {}]", to_string(places),
                               extents.samples, extents.rows));
    }
  }
  for (const size_t i : {In::Cosines, In::Sines}) {
    const TensorType& angles = floating_input(context, i, {positions ? size_t{2} : size_t{3}});
    Shape expected = {extents.samples, extents.rows, extents.pairs};
    if (positions) expected = {angles.shape[0], extents.pairs};
    expect_input(context, i, {x.dtype, expected}, "a number for each pair that is turned");
  }
  context.set_output(0, x);
}

class RotaryExpansion {
 public:
  explicit RotaryExpansion(ExpandContext& context)
      : context_(context),
        type_(context.type(context.input(RotaryInput::X))),
        extents_(rotary_extents(context.node(), type_)) {}

  void run() {
    const auto [samples, heads, rows, depth, pairs] = extents_;
    ValueId x = context_.input(RotaryInput::X);
    if (!apart()) x = reshaped("heads", x, {0, 0, heads, depth});
    Ints extents = {2 * pairs};
    if (depth > 2 * pairs) extents.push_back(depth - 2 * pairs);
    const std::vector<ValueId> parts = extents.size() == 1 ? std::vector{x} : split("parts", x, extents);
    std::vector<ValueId> all = turned(parts[0]);
    if (parts.size() == 2) all.push_back(parts[1]);
    const ValueId result = all.size() == 1 ? all[0] : one("Concat", apart() ? "" : "all", all, {{"axis", int64_t{-1}}});
    context_.replace_output(0, apart() ? result : reshaped("", result, {0, 0, heads * depth}));
  }

 private:
  bool apart() const { return type_.shape.size() == 4; }

  // The elements of all pairs, in one part or in two.
  std::vector<ValueId> turned(ValueId x) {
    const bool interleaved = flag_attribute(context_.node(), "interleaved");
    const int64_t pairs = extents_.pairs;
    std::vector<ValueId> halves;
    if (interleaved) {
      for (const ValueId each : split("pairs", reshaped("paired", x, {0, 0, 0, pairs, 2}), {1, 1}))
        halves.push_back(reshaped("half", each, {0, 0, 0, pairs}));
    } else {
      halves = split("halves", x, {pairs, pairs});
    }
    const ValueId cosines = angles(RotaryInput::Cosines), sines = angles(RotaryInput::Sines);
    const auto product = [&](ValueId a, ValueId b) { return one("Mul", "product", {a, b}); };
    const ValueId first = one("Sub", "first", {product(cosines, halves[0]), product(sines, halves[1])}),
                  second = one("Add", "second", {product(sines, halves[0]), product(cosines, halves[1])});
    if (!interleaved) return {first, second};
    const auto column = [&](ValueId half) { return one("Unsqueeze", "column", {half}, {{"axes", Ints{-1}}}); };
    const ValueId columns = one("Concat", "turned", {column(first), column(second)}, {{"axis", int64_t{-1}}});
    return {reshaped("whole", columns, {0, 0, 0, 2 * pairs})};
  }

  // Cosines or sines of each row, the same for all heads.
  ValueId angles(size_t input) {
    ValueId table = context_.input(input);
    const ValueId positions = context_.node().input(RotaryInput::Positions);
    if (positions != kNone) table = one("Gather", "angles", {table, positions}, {{"axis", int64_t{0}}});
    return one("Unsqueeze", "of_heads", {table}, {{"axes", Ints{apart() ? 1 : 2}}});
  }

  ValueId one(const char* op, const char* label, std::vector<ValueId> inputs, Attributes attributes = {}) {
    return context_.add(op, label, std::move(inputs), 1, std::move(attributes))[0];
  }
  ValueId reshaped(const char* label, ValueId value, const Ints& shape) {
    return one("Reshape", label, {value}, {{"shape", shape}});
  }
  std::vector<ValueId> split(const char* label, ValueId value, const Ints& extents) {
    return context_.add("Split", label, {value}, int(extents.size()), {{"axis", int64_t{-1}}, {"split", extents}});
  }

  ExpandContext& context_;
  const TensorType type_;
  const RotaryExtents extents_;
};

}  // namespace

void register_product_rotary_embedding(OpRegistry& registry) {
  registry.add(
      {.domain = "",
       .name = "RotaryEmbedding",
       .doc = "pairs of a head's elements, turned by angles of the row's position",
       .inputs = {lowered("X"), plain("cos_cache"), plain("sin_cache"), plain("position_ids", OperandSpec::Optional)},
       .outputs = {lowered("Y")},
       .attributes = {int_spec("interleaved", 0, "1: pairs are neighbours; 0: of the two halves"),
                      int_spec("num_heads", 0, "of X if it has three axes"),
                      int_spec("rotary_embedding_dim", 0, "elements of a head that are turned; 0: all")},
       .infer = infer_rotary_embedding,
       .expand = [](ExpandContext& context) { RotaryExpansion(context).run(); }});
}

}  // namespace arbalest
