// SPDX-License-Identifier: Apache-2.0
#pragma once
// The bias of attention that exporters write as sums with biases, masks and conditions. Layers that have the same one
// get one value.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "passes/rewriter.h"

namespace arbalest {

// A summand of scores: a bias, or 0 for the keys that a condition leaves and minus infinity for those it hides.
struct ScoreSummand {
  ValueId bias = kNone;
  ValueId condition = kNone;
  bool hidden_if = false;  // what the condition is for a hidden key
  bool finite = false;     // the file hides by a number that leaves a key no weight next to others: no summand besides
};

// All summands together.
struct ScoreBias {
  ValueId bias = kNone;   // kNone: nothing is added
  ValueId alive = kNone;  // whether a row has any key (…, rows, 1); kNone: each one has, or nothing depends on it
  bool causal = false;    // the bias hides all keys after each row and does nothing else
};

class AttentionMasks {
 public:
  AttentionMasks(Graph& graph, Rewriter& rewriter) : graph_(graph), rewriter_(rewriter) {}

  // Whether it is known when the graph is read that the condition leaves a key of each row.
  bool leaves_some(const ScoreSummand& summand) const;

  // Adds nodes before `at` that make the bias of `scores` out of the summands. Rows without any key are 0 in the graph
  // if they are `guarded`. Their bias is 0 then, so that their weights are numbers, and `alive` tells them.
  ScoreBias join(NodeId at, const std::vector<ScoreSummand>& summands, const Shape& scores, bool guarded);

  // The condition (samples, heads, rows, 1), whose first axes may be lacking, in the order of attention's result.
  ValueId turned(NodeId at, ValueId alive, int64_t head_axis);

  // A value of one number.
  ValueId number(float content);

 private:
  ValueId constant(const std::string& name, const Shape& shape, const std::vector<float>& numbers);
  ValueId once(NodeId at, std::string_view op, const std::vector<ValueId>& inputs, Attributes attributes = {});
  ValueId same(ValueId value, int depth);
  std::string key_of(const Node& node, int depth);
  std::optional<ScoreBias> known(ValueId bias, const std::vector<float>& numbers);

  Graph& graph_;
  Rewriter& rewriter_;
  std::map<ValueId, ValueId> same_;       // the first value that is computed as this one
  std::map<std::string, ValueId> first_;  // by what is computed
};

}  // namespace arbalest
