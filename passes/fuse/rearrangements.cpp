// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>

#include "graph/layouts.h"
#include "ops/math/strided.h"
#include "passes/fuse/strided_view.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

class RearrangementFusion {
 public:
  RearrangementFusion(Graph& graph, const std::vector<ValueId>& asked) : graph_(graph), rewriter_(graph, asked) {}

  void run() {
    for (NodeId n = rewriter_.ids().last; n-- > 0;) {
      if (!removed_.contains(n) && moves(n)) join(n);
    }
    rewriter_.finish();
  }

 private:
  const Node& node(NodeId id) const { return rewriter_.node(id); }
  const TensorType& type(ValueId value) const { return rewriter_.value(value).type; }

  bool moves(NodeId id) const {
    if (node(id).inputs.empty() || node(id).output() == kNone) return false;
    return rewriter_.is(id, op::Transpose) || rewriter_.is(id, op::ChangeLayout) ||
           (rewriter_.is(id, op::Flatten) && !type(node(id).input()).lies_as(Layout::RowMajor));
  }

  // Elements keep their order.
  bool renames(NodeId id) const {
    if (rewriter_.is(id, op::TransposeInPlace) || rewriter_.is(id, op::Identity)) return true;
    return rewriter_.reshapes(id) && type(node(id).input()).lies_as(Layout::RowMajor);
  }

  // The nodes from one that moves elements to `last`, each of which alone reads what the one before it makes.
  std::vector<NodeId> chain_to(NodeId last) const {
    std::vector<NodeId> chain = {last};
    size_t length = 1;  // up to a node that moves
    for (;;) {
      const ValueId read = node(chain.back()).input();
      const NodeId producer = rewriter_.value(read).producer;
      const bool alone = rewriter_.only_reader(read) != kNone;
      if (!alone || producer == kNone || node(producer).stage != node(last).stage) break;
      if (!moves(producer) && !renames(producer)) break;
      chain.push_back(producer);
      if (moves(producer)) length = chain.size();
    }
    chain.resize(length);
    std::reverse(chain.begin(), chain.end());
    return chain;
  }

  void join(NodeId last) {
    std::vector<NodeId> chain = chain_to(last);
    while (std::count_if(chain.begin(), chain.end(), [&](NodeId id) { return moves(id); }) > 1) {
      const auto found = rearrangement(graph_, chain);
      const bool named = can_be_named(type(node(chain.front()).input())) && can_be_named(type(node(last).output()));
      if (found && named && found->extents.size() <= Strided::kMaxRank) return replace(chain, *found);
      do chain.erase(chain.begin());
      while (!moves(chain.front()));
    }
  }

  // Whether arbalest.TransposeInPlace names the axes of such a value in the order in which they lie, or need not.
  static bool can_be_named(const TensorType& type) { return type.lies_as(Layout::RowMajor) || type.shape.size() >= 4; }

  // The shape of a value of that type if its axes are named in the order in which they lie.
  static Shape in_memory(const TensorType& type) {
    return type.lies_as(Layout::RowMajor) ? type.shape : with_channels_last(type.shape);
  }

  void replace(const std::vector<NodeId>& chain, const Rearrangement& by) {
    const NodeId last = chain.back();
    const ValueId y = node(last).output();
    const TensorType from = type(node(chain.front()).input()), to = type(y);
    const bool images = !to.lies_as(Layout::RowMajor);
    ValueId value = node(chain.front()).input();
    Shape shape = from.shape;
    const auto add = [&](std::string_view op, const char* label, Attributes attributes) {
      value = rewriter_.add_before(last, op, rewriter_.value(y).name + label, {value}, std::move(attributes));
      shape = rewriter_.shape(value);
    };
    const auto reshape = [&](const char* label, const Shape& wanted) {
      if (shape != wanted) add(op::Reshape, label, {{"shape", wanted}, {"allowzero", int64_t{1}}});
    };
    if (!from.lies_as(Layout::RowMajor)) {
      add(op::TransposeInPlace, ".pixels", {{"perm", channels_to_last(from.shape.size())}});
    }
    if (!std::is_sorted(by.turns.begin(), by.turns.end())) {
      reshape(".axes", by.extents);
      add(op::Transpose, ".turned", {{"perm", by.turns}});
    }
    for (size_t i = 0; i + 1 < chain.size(); ++i) {
      rewriter_.remove(chain[i]);
      removed_.insert(chain[i]);
    }
    if (!images) {
      rewriter_.become(last, op::Reshape, {value}, {y}, {{"shape", to.shape}, {"allowzero", int64_t{1}}});
      return;
    }
    reshape(".rows", in_memory(to));
    rewriter_.become(last, op::TransposeInPlace, {value}, {y}, {{"perm", channels_from_last(to.shape.size())}});
  }

  const Graph& graph_;
  Rewriter rewriter_;
  std::set<NodeId> removed_;
};

}  // namespace

void fuse_rearrangements(Graph& graph, const std::vector<ValueId>& asked) {
  RearrangementFusion(graph, asked).run();
}

}  // namespace arbalest
