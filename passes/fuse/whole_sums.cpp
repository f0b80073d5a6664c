// SPDX-License-Identifier: Apache-2.0

// Sums of all elements, such as gradients of single numbers that scale or shift a tensor, are sums over rows and the
// sum of those: a region makes the first on the way.

#include <algorithm>

#include "ops/math/strided.h"
#include "passes/fuse/row_sums.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

class WholeSums {
 public:
  explicit WholeSums(Graph& graph) : graph_(graph), rewriter_(graph) {}

  void run() {
    for (const NodeId n : rewriter_.ids()) {
      if (rewriter_.is(n, op::SumTo) && is_whole(n) && meets_region(n)) split(n);
    }
    rewriter_.finish();
  }

 private:
  const TensorType& summed(NodeId n) const { return rewriter_.value(rewriter_.input(n)).type; }

  static constexpr int64_t kLeastRows = 32;  // for which one more sum pays

  // Whether the node adds up all elements of a tensor that is large enough for a region's sum.
  bool is_whole(NodeId n) const {
    const TensorType& x = summed(n);
    if (!is_number(x.dtype) || x.shape.size() < 2 || x.bytes() < kLeastSummedBytes) return false;
    const int64_t columns = x.shape[innermost_axis(x)];
    return rewriter_.value(rewriter_.output(n)).type.elements() == 1 && columns > 1 &&
           x.elements() / columns >= kLeastRows;
  }

  // Whether a region may make or read what is summed.
  bool meets_region(NodeId n) const {
    const ValueId x = rewriter_.input(n);
    const NodeId producer = rewriter_.value(x).producer;
    if (producer != kNone && rewriter_.is_elementwise(producer, rewriter_.shape(x))) return true;
    const std::vector<NodeId>& readers = rewriter_.readers(x);
    return std::any_of(readers.begin(), readers.end(),
                       [&](NodeId reader) { return reader != n && region_reads(graph_, rewriter_, reader, x); });
  }

  void split(NodeId n) {
    ValueId rows = rewriter_.input(n);
    const TensorType x = summed(n);
    const std::string name = rewriter_.value(rewriter_.output(n)).name;
    if (innermost_axis(x) != 1) {
      const int64_t columns = x.shape[innermost_axis(x)];
      rows = rewriter_.add_before(n, op::Reshape, name + ".matrix", {rows},
                                  {{"shape", Shape{x.elements() / columns, columns}}});
    }
    rows = rewriter_.add_before(n, op::ChannelSum, name + ".rows", {rows});
    Shape shape(rewriter_.shape(rewriter_.output(n)).size(), 1);  // to which the one element's broadcasts
    if (shape.size() > 1) {
      shape.back() = rewriter_.shape(rows)[0];
      rows = rewriter_.add_before(n, op::Reshape, name + ".row", {rows}, {{"shape", shape}});
    }
    rewriter_.set_input(n, rows);
  }

  Graph& graph_;
  Rewriter rewriter_;
};

}  // namespace

void split_whole_sums(Graph& graph) {
  WholeSums(graph).run();
}

}  // namespace arbalest
