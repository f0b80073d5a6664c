// SPDX-License-Identifier: Apache-2.0
#pragma once
// Parts of tensors: those that Slice takes, and those that arbalest.Assemble puts at their places in another tensor.

#include <vector>

#include "graph/op.h"

namespace arbalest {

// Along each axis of a tensor: the first element that is taken, how far it is to the next, and how many there are.
struct Cut {
  using Ints = std::vector<int64_t>;
  Ints first, step;
  Shape shape;

  Cut(Ints from, Ints by, Shape size) : first(std::move(from)), step(std::move(by)), shape(std::move(size)) {}
  // Attributes as Slice has them; negative bounds count from the end, and those past an end are cut.
  Cut(const Shape& x, const Ints& starts, const Ints& ends, const Ints& axes, const Ints& steps);
  // Those of a Slice or a SliceGrad, for the tensor that the slice is of.
  Cut(const Node& node, const Shape& x);

  // In memory with these strides: where the part begins, and its own strides.
  int64_t offset(const Ints& strides) const;
  Ints steps(const Ints& strides) const;
};

// Elements of one input of Assemble, and where they go. Both parts have the same shape.
struct Piece {
  Cut from, to;
};

// The pieces that arbalest.Interleave takes of a tensor of that shape.
std::vector<Piece> pieces_of_interleave(const Node& node, const Shape& shape);

// An Assemble's pieces, one for each of its inputs. Ranks of inputs and of the output are the same.
std::vector<Piece> pieces_of(const Node& node);
// The attributes that say so. Places that no piece covers are 0.
Attributes attributes_of(const std::vector<Piece>& pieces, const TensorType& whole);

}  // namespace arbalest
