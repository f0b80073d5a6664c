// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <optional>

#include "ops/shape/copy.h"
#include "ops/shape/cut.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

using Ints = Cut::Ints;

// A piece of a value that nodes copy into another one.
struct Part {
  ValueId source = kNone;
  Piece piece;
};
using Parts = std::vector<Part>;  // no two of them cover the same place; zeros elsewhere

Cut whole_of(const Shape& shape) {
  return {Ints(shape.size(), 0), Ints(shape.size(), 1), shape};
}

// The numbers k from 0 to below `count` for which first + k · step is at least `begin` and below `end`.
std::pair<int64_t, int64_t> within(int64_t first, int64_t step, int64_t count, int64_t begin, int64_t end) {
  const auto steps_to = [&](int64_t distance, int64_t size) {  // the least k with k · size ≥ distance
    return distance <= 0 ? 0 : std::min((distance + size - 1) / size, count);
  };
  const int64_t low = step > 0 ? steps_to(begin - first, step) : steps_to(first - end + 1, -step);
  const int64_t high = step > 0 ? steps_to(end - first, step) : steps_to(first - begin + 1, -step);
  return {low, high};
}

// The elements that `outer` reads and `inner` wrote, straight from where they came from; nothing if there are none.
// None if no steps say which elements these are.
std::optional<Parts> through(const Piece& outer, const Part& inner) {
  Part part = inner;
  Piece& made = part.piece;
  made.to = outer.to;
  for (size_t axis = 0; axis < outer.from.shape.size(); ++axis) {
    const int64_t read = outer.from.first[axis], by = outer.from.step[axis], count = outer.from.shape[axis];
    const int64_t written = inner.piece.to.first[axis], apart = inner.piece.to.step[axis],
                  written_count = inner.piece.to.shape[axis];
    if (apart != 1 && by != 1) return std::nullopt;
    int64_t k = 0, j = 0, size = 0;  // the first element of either that both have
    if (apart == 1) {
      const auto [low, high] = within(read, by, count, written, written + written_count);
      k = low;
      j = read + by * low - written;
      size = high - low;
      made.from.step[axis] = inner.piece.from.step[axis] * by;
    } else {
      const auto [low, high] = within(written, apart, written_count, read, read + count);
      j = low;
      k = written + apart * low - read;
      size = high - low;
      made.to.step[axis] = outer.to.step[axis] * apart;
    }
    if (size <= 0) return Parts{};
    made.from.first[axis] = inner.piece.from.first[axis] + inner.piece.from.step[axis] * j;
    made.to.first[axis] = outer.to.first[axis] + outer.to.step[axis] * k;
    made.from.shape[axis] = made.to.shape[axis] = size;
  }
  return Parts{part};
}

// Whether the cuts have no element in common; false also where that is not plain to see.
bool disjoint(const Cut& a, const Cut& b) {
  for (size_t axis = 0; axis < a.shape.size(); ++axis) {
    const auto bounds = [&](const Cut& cut) {
      const int64_t first = cut.first[axis], last = first + (cut.shape[axis] - 1) * cut.step[axis];
      return std::minmax({first, last});
    };
    const auto [a_low, a_high] = bounds(a);
    const auto [b_low, b_high] = bounds(b);
    if (a_high < b_low || b_high < a_low) return true;
    const int64_t step = std::abs(a.step[axis]);
    if (step == std::abs(b.step[axis]) && (a.first[axis] - b.first[axis]) % step != 0) return true;
  }
  return false;
}

class MoveFusion {
 public:
  MoveFusion(Graph& graph, const std::vector<ValueId>& asked) : rewriter_(graph, asked) {}

  void run() {
    for (const NodeId n : rewriter_.ids()) follow(n);
    for (const NodeId n : rewriter_.ids()) rewrite(n);
    rewriter_.finish();
  }

 private:
  // A value that nodes only put together.
  struct Made {
    Parts parts;
    bool fused = false;    // from other values than the node reads
    bool between = false;  // only nodes read it that may read what it was made of instead, in the same stage
    bool wanted = false;   // in memory, since one of them reads it nevertheless
  };

  const Shape& shape(ValueId value) const { return rewriter_.shape(value); }

  bool moves(NodeId id) const {
    return rewriter_.is(id, op::Slice) || rewriter_.is(id, op::Concat) || rewriter_.is(id, op::Split) ||
           rewriter_.is(id, op::SliceGrad) || rewriter_.is(id, op::Interleave) || rewriter_.is(id, op::Add);
  }

  bool is_between_moves(ValueId value) const {
    const std::vector<NodeId>& readers = rewriter_.readers(value);
    const Value& made = rewriter_.value(value);
    const auto moves_too = [&](NodeId reader) {
      return reader != kNone && moves(reader) && rewriter_.node(reader).stage == rewriter_.node(made.producer).stage;
    };
    return made.view.base == kNone && !readers.empty() && std::all_of(readers.begin(), readers.end(), moves_too);
  }

  // The node reads the value itself.
  void want(ValueId value) {
    if (const auto found = made_.find(value); found != made_.end()) found->second.wanted = true;
  }

  void record(ValueId value, Parts parts, bool fused) {
    made_[value] = {std::move(parts), fused, is_between_moves(value), false};
  }

  // The parts of other values that a part consists of, if its source need not be in memory.
  std::optional<Parts> origins(const Part& part) const {
    const auto found = made_.find(part.source);
    if (found == made_.end() || !found->second.between) return std::nullopt;
    Parts all;
    for (const Part& inner : found->second.parts) {
      const std::optional<Parts> met = through(part.piece, inner);
      if (!met) return std::nullopt;
      all.insert(all.end(), met->begin(), met->end());
    }
    return all;
  }

  // The value consists of these parts, or of what they are made of.
  void put_together(ValueId value, const Parts& read) {
    Parts parts;
    std::vector<ValueId> whole;  // of what is read: what has to be in memory
    for (const Part& part : read) {
      const std::optional<Parts> made = origins(part);
      const bool known = made && parts.size() + made->size() <= kMostPieces;
      if (known) parts.insert(parts.end(), made->begin(), made->end());
      if (known) continue;
      parts.push_back(part);
      whole.push_back(part.source);
    }
    const bool nothing = parts.empty();  // but zeros, which the node reads where they are
    for (const Part& part : read) {
      if (nothing) whole.push_back(part.source);
    }
    for (const ValueId source : whole) want(source);
    const bool fused = whole.size() < read.size();
    record(value, nothing ? read : std::move(parts), fused);
  }

  void follow(NodeId id) {
    const Node& node = rewriter_.node(id);
    const bool slices = rewriter_.is(id, op::Slice);
    if (slices || rewriter_.is(id, op::SliceGrad)) {
      const ValueId x = node.input(), y = node.output();
      const Cut cut(node, shape(slices ? x : y)), whole = whole_of(shape(slices ? y : x));
      return put_together(y, {{x, slices ? Piece{cut, whole} : Piece{whole, cut}}});
    }
    if (rewriter_.is(id, op::Concat)) return follow_concat(node);
    if (rewriter_.is(id, op::Interleave)) {
      Parts parts;
      for (Piece& piece : pieces_of_interleave(node, shape(node.input()))) {
        parts.push_back({node.input(), std::move(piece)});
      }
      if (parts.empty() || parts.size() > kMostPieces) return want(node.input());
      return put_together(node.output(), parts);
    }
    if (rewriter_.is(id, op::Split)) return follow_split(node);
    if (rewriter_.is(id, op::Add) && follow_sum(node)) return;
    for (const ValueId input : node.inputs) {
      if (input != kNone) want(input);
    }
  }

  void follow_concat(const Node& node) {
    Parts parts;
    const size_t axis = axis_of(node, shape(node.output()).size());
    int64_t place = 0;
    for (const ValueId input : node.inputs) {
      Piece piece{whole_of(shape(input)), whole_of(shape(input))};
      piece.to.first[axis] = place;
      place += shape(input)[axis];
      parts.push_back({input, std::move(piece)});
    }
    put_together(node.output(), parts);
  }

  void follow_split(const Node& node) {
    const size_t axis = axis_of(node, shape(node.input()).size());
    want(node.input());
    int64_t place = 0;
    for (const ValueId output : node.outputs) {
      if (output == kNone) return;  // it would say how far it is to the next part
      Piece piece{whole_of(shape(output)), whole_of(shape(output))};
      piece.from.first[axis] = place;
      place += shape(output)[axis];
      record(output, {{node.input(), std::move(piece)}}, false);
    }
  }

  // A sum of what has zeros wherever the other one has something.
  bool follow_sum(const Node& node) {
    Parts parts;
    for (const ValueId term : node.inputs) {
      const auto found = made_.find(term);
      if (found == made_.end() || !found->second.between || shape(term) != shape(node.output())) return false;
      for (const Part& part : found->second.parts) {
        const bool free = std::all_of(parts.begin(), parts.end(),
                                      [&](const Part& other) { return disjoint(part.piece.to, other.piece.to); });
        if (!free) return false;
        parts.push_back(part);
      }
    }
    if (parts.size() > kMostPieces) return false;
    record(node.output(), std::move(parts), true);
    return true;
  }

  // Nodes are taken away whose results all readers read elsewhere.
  void rewrite(NodeId id) {
    const std::vector<ValueId> outputs = rewriter_.node(id).outputs;
    const auto found = [&](ValueId output) { return output == kNone ? made_.end() : made_.find(output); };
    const bool spent = !outputs.empty() && std::all_of(outputs.begin(), outputs.end(), [&](ValueId output) {
      const auto made = found(output);
      return made != made_.end() && made->second.between && !made->second.wanted;
    });
    if (spent) return rewriter_.remove(id);
    if (outputs.size() != 1 || found(outputs.front()) == made_.end()) return;
    const Made& made = made_.at(outputs.front());
    if (!made.fused) return;
    std::vector<ValueId> sources;
    std::vector<Piece> pieces;
    for (const Part& part : made.parts) {
      sources.push_back(part.source);
      pieces.push_back(part.piece);
    }
    rewriter_.become(id, op::Assemble, sources, outputs, attributes_of(pieces, rewriter_.value(outputs.front()).type));
  }

  Rewriter rewriter_;
  std::map<ValueId, Made> made_;
};

}  // namespace

void fuse_moves(Graph& graph, const std::vector<ValueId>& asked) {
  MoveFusion(graph, asked).run();
}

}  // namespace arbalest
