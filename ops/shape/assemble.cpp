// SPDX-License-Identifier: Apache-2.0

// arbalest.Assemble: what chains of Slice, Concat, Split, gradients of Slice and sums of these come to, in one copy.

#include <fmt/format.h>

#include "ops/definition.h"
#include "ops/shape/copy.h"
#include "ops/shape/cut.h"

namespace arbalest {
namespace {

using Ints = Cut::Ints;

// The lists of all pieces, one piece after the other, and the part of piece `i` of each.
Cut cut_of(const Node& node, const char* first, const char* step, size_t i, size_t rank) {
  const auto part = [&](const char* name) {
    const Ints all = ints_attribute(node, name);
    return Ints(all.begin() + int64_t(i * rank), all.begin() + int64_t((i + 1) * rank));
  };
  return {part(first), part(step), part("sizes")};
}

bool lies_in(const Cut& cut, const Shape& whole) {
  for (size_t axis = 0; axis < whole.size(); ++axis) {
    if (cut.shape[axis] == 0) continue;
    const int64_t first = cut.first[axis], last = first + (cut.shape[axis] - 1) * cut.step[axis];
    if (std::min(first, last) < 0 || std::max(first, last) >= whole[axis]) return false;
  }
  return true;
}

void infer_assemble(InferContext& context) {
  const TensorType whole = stated_type(context.node(), context.input(0).dtype);
  const std::vector<Piece> pieces = pieces_of(context.node());
  for (size_t i = 0; i < pieces.size(); ++i) {
    const TensorType& x = context.input(i);
    if (x.dtype != whole.dtype || x.shape.size() != whole.shape.size() || !lies_in(pieces[i].from, x.shape) ||
        !lies_in(pieces[i].to, whole.shape)) {
      context.fail(fmt::format("piece {} of {} does not fit into {}", i, to_string(x), to_string(whole)));
    }
  }
  context.set_output(0, whole);
}

std::vector<Sample> assemble_samples() {
  const auto plain = [](Shape shape, DataType type = DataType::Float32) { return TensorType{type, std::move(shape)}; };
  const auto image = [&](Shape shape) { return plain(std::move(shape)).in(Layout::ChannelsLast); };
  const auto sample = [](std::string name, std::vector<TensorType> inputs, const TensorType& whole,
                         const std::vector<Piece>& pieces) {
    Sample made{.name = std::move(name), .attributes = attributes_of(pieces, whole), .tolerance = 0};
    for (const TensorType& type : inputs) made.inputs.push_back({.type = type, .low = 0, .high = 1});
    return made;
  };
  const Shape half = {2, 2, 4, 8};
  return {sample("rolled", {plain({3, 5}), plain({3, 5})}, plain({3, 5}),
                 {{{{0, 2}, {1, 1}, {3, 3}}, {{0, 0}, {1, 1}, {3, 3}}},
                  {{{0, 0}, {1, 1}, {3, 2}}, {{0, 3}, {1, 1}, {3, 2}}}}),
          sample("with a gap", {plain({2, 8}), plain({4, 8})}, plain({7, 8}),
                 {{{{0, 0}, {1, 1}, {2, 8}}, {{0, 0}, {1, 1}, {2, 8}}},
                  {{{1, 0}, {1, 1}, {3, 8}}, {{4, 0}, {1, 1}, {3, 8}}}}),
          sample("every second", {plain(half), plain(half)}, plain({2, 4, 4, 8}),
                 {{{{0, 0, 0, 0}, {1, 1, 1, 1}, half}, {{0, 0, 0, 0}, {1, 2, 1, 1}, half}},
                  {{{0, 1, 0, 7}, {1, -1, 1, -1}, half}, {{0, 1, 0, 0}, {1, 2, 1, 1}, half}}}),
          sample("of two layouts", {image({2, 3, 4, 5}), plain({2, 3, 4, 5})}, image({2, 3, 4, 8}),
                 {{{{0, 0, 0, 1}, {1, 1, 1, 1}, {2, 3, 4, 4}}, {{0, 0, 0, 4}, {1, 1, 1, 1}, {2, 3, 4, 4}}},
                  {{{0, 0, 0, 0}, {1, 1, 1, 1}, {2, 3, 4, 4}}, {{0, 0, 0, 0}, {1, 1, 1, 1}, {2, 3, 4, 4}}}}),
          // Many elements, which GPUs put together by rows: one part takes every second place of all rows.
          sample("dealt out", {image({8, 61, 16, 16}), image({8, 122, 16, 16})}, image({8, 122, 16, 16}),
                 {{{{0, 0, 0, 0}, {1, 1, 1, 1}, {8, 61, 16, 16}}, {{0, 1, 0, 0}, {1, 2, 1, 1}, {8, 61, 16, 16}}},
                  {{{0, 61, 0, 0}, {1, 1, 1, 1}, {8, 30, 16, 16}}, {{0, 0, 0, 0}, {1, 4, 1, 1}, {8, 30, 16, 16}}}}),
          sample("nothing of one", {plain({3}, DataType::Int32)}, plain({4}, DataType::Int32),
                 {{{{0}, {1}, {0}}, {{0}, {1}, {0}}}})};
}

}  // namespace

std::vector<Piece> pieces_of(const Node& node) {
  const size_t rank = ints_attribute(node, "shape").size();
  std::vector<Piece> pieces;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    pieces.push_back({cut_of(node, "from", "from_steps", i, rank), cut_of(node, "to", "to_steps", i, rank)});
  }
  return pieces;
}

Attributes attributes_of(const std::vector<Piece>& pieces, const TensorType& whole) {
  Ints from, from_steps, to, to_steps, sizes;
  const auto append = [](Ints& all, const Ints& more) { all.insert(all.end(), more.begin(), more.end()); };
  for (const Piece& piece : pieces) {
    append(from, piece.from.first);
    append(from_steps, piece.from.step);
    append(to, piece.to.first);
    append(to_steps, piece.to.step);
    append(sizes, piece.to.shape);
  }
  Attributes attributes = {
      {"from", from}, {"from_steps", from_steps}, {"to", to}, {"to_steps", to_steps}, {"sizes", sizes}};
  set_type(attributes, whole);
  return attributes;
}

Copying copies_of_assembly(const KernelRequest& request) {
  const TensorType& whole = request.outputs[0];
  const Ints strides = memory_strides(whole);
  Copying copying;
  int64_t covered = 0;
  for (const Piece& piece : pieces_of(request.node)) {
    const size_t i = copying.boxes.size();
    const Ints own = memory_strides(request.inputs[i]);
    BoxCopy box(piece.to.shape, piece.to.steps(strides), piece.to.offset(strides), piece.from.steps(own),
                piece.from.offset(own));
    box.input = i;
    covered += box.count;
    copying.boxes.push_back(std::move(box));
  }
  copying.fills = covered < whole.elements();
  return copying;
}

void add_assemble(OpRegistry& registry) {
  const auto list = [](const char* name, const char* doc) { return required_spec(name, AttributeKind::Ints, doc); };
  std::vector<AttributeSpec> attributes = {
      list("from", "of each piece, one after the other: its first element in its input, along each axis"),
      list("from_steps", "how far it is to the next there"), list("to", "its first element in the output"),
      list("to_steps", "how far it is to the next there"), list("sizes", "elements along each axis")};
  for (AttributeSpec& spec : type_specs()) attributes.push_back(std::move(spec));
  registry.add({.domain = "arbalest",
                .name = "Assemble",
                .doc = "a piece of each input at its place in the output, which no other piece covers; zeros elsewhere",
                .inputs = {{.name = "inputs", .arity = OperandSpec::Variadic, .lowered = true}},
                .outputs = {{.name = "whole", .lowered = true}},
                .attributes = std::move(attributes),
                .internal = true,
                .layout = std::nullopt,
                .infer = infer_assemble,
                .cost =
                    [](const Graph& graph, const Node& node) {
                      double read = 0;
                      for (const Piece& piece : pieces_of(node)) read += double(element_count(piece.from.shape));
                      const TensorType& whole = output_type(graph, node, 0);
                      return Cost{0, read * double(size_of(whole.dtype)) + double(whole.bytes())};
                    },
                .samples = assemble_samples});
}

}  // namespace arbalest
