// SPDX-License-Identifier: Apache-2.0

// Parts of what elementwise operators make, if nothing reads more of it than parts, are made of parts of what the
// operators read. A gated layer halves what its activation makes: the halves are the activations of two halves, which
// regions read in place, so that the whole is never stored. A half that a kernel other than a region reads, forward
// and backward, is computed once for each.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "ops/regions/region.h"
#include "ops/shape/copy.h"
#include "passes/fuse/memory_homes.h"
#include "passes/fuse/row_sums.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

constexpr int64_t kShortestPart = 32;  // bytes of a part that lie together, so that memory is read by whole sectors

class PartComputation {
 public:
  explicit PartComputation(Graph& graph) : graph_(graph), rewriter_(graph), memory_(graph) {}

  void run() {
    for (NodeId n = rewriter_.ids().last; n-- > 0;) {
      if (makes_elements(n)) compute_parts(n);
    }
    rewriter_.finish();
  }

 private:
  // The elements that one operator after the other makes of a tensor of their shape, and of single numbers.
  struct Chain {
    ValueId from = kNone;
    std::set<NodeId> nodes;
  };
  // A part of the chain's result that a node copies, and the slice that copies the same part of another tensor.
  struct Part {
    NodeId mover;
    ValueId value;
    Attributes slice;
  };

  const TensorType& type(ValueId value) const { return rewriter_.value(value).type; }
  bool makes_elements(NodeId n) const {
    const Node& node = rewriter_.node(n);
    const bool states_shape = node.op->attribute_spec("shape") != nullptr;  // which a part would not have
    return n < rewriter_.ids().last && is_region_step(graph_, node) && !node.op->random && !states_shape &&
           rewriter_.value(node.output()).view.base == kNone;
  }
  bool lie_alike(ValueId a, ValueId b) const {
    return type(a).shape == type(b).shape && type(a).layout == type(b).layout;
  }

  // All chains that end with the node, the longest last.
  std::vector<Chain> chains_to(NodeId last) const {
    const ValueId whole = rewriter_.output(last);
    std::vector<Chain> found;
    Chain chain;
    std::set<NodeId> open = {last};  // that make what is open; the latest is taken next
    std::set<ValueId> fixed;         // open values that no such node makes
    while (!open.empty() && chain.nodes.size() < RegionProgram::kMostSteps / 2) {
      const NodeId n = *open.rbegin();
      open.erase(n);
      chain.nodes.insert(n);
      const Node& node = rewriter_.node(n);
      for (size_t i = 0; i < node.op->element->arguments.size(); ++i) {
        const ValueId input = node.inputs[i];
        if (type(input).elements() == 1) continue;
        if (!lie_alike(input, whole)) return found;
        const NodeId producer = rewriter_.value(input).producer;
        const bool continues =
            producer != kNone && makes_elements(producer) && rewriter_.node(producer).stage == node.stage;
        if (continues) {
          open.insert(producer);
        } else {
          fixed.insert(input);
        }
      }
      if (open.size() + fixed.size() != 1) continue;
      chain.from = fixed.empty() ? rewriter_.output(*open.begin()) : *fixed.begin();
      found.push_back(chain);
    }
    return found;
  }

  // The parts of `whole`, its first input, that the node copies. Nothing: it does something else.
  std::optional<std::vector<Part>> parts_of(NodeId mover, ValueId whole) const {
    std::vector<Part> parts;
    const Node& node = rewriter_.node(mover);
    if (rewriter_.is(mover, op::Slice) && node.input() == whole) {
      parts.push_back({mover, node.output(), node.attributes});
    } else if (rewriter_.is(mover, op::Split) && node.input() == whole) {
      const size_t axis = axis_of(node, type(whole).shape.size());
      int64_t first = 0;
      for (const ValueId output : node.outputs) {
        if (output == kNone) return std::nullopt;
        const int64_t end = first + type(output).shape[axis];
        const auto list = [](int64_t number) { return std::vector<int64_t>{number}; };
        parts.push_back({mover, output, {{"starts", list(first)}, {"ends", list(end)}, {"axes", list(int64_t(axis))}}});
        first = end;
      }
    } else {
      return std::nullopt;
    }
    const auto is_long = [&](const Part& part) {
      const TensorType& own = type(part.value);
      return own.elements() > 0 && own.shape[innermost_axis(own)] * int64_t(size_of(own.dtype)) >= kShortestPart;
    };
    if (!std::all_of(parts.begin(), parts.end(), is_long)) return std::nullopt;
    return parts;
  }

  // The first reader after the forward pass, if the forward pass would have to keep the value for one of them; else
  // kNone.
  NodeId first_later(NodeId mover, ValueId value) const {
    if (rewriter_.node(mover).stage != Stage::Forward) return kNone;
    NodeId first = kNone;
    bool keeps = false;
    for (const NodeId reader : rewriter_.readers(value)) {
      if (reader == kNone) return kNone;
      if (rewriter_.node(reader).stage == Stage::Forward) continue;
      first = first == kNone ? reader : std::min(first, reader);
      keeps = keeps || !region_reads(graph_, rewriter_, reader, value);
    }
    return keeps ? first : kNone;
  }

  // Whether memory holds the value until then in any case, for another reader.
  bool is_kept_until(ValueId value, NodeId end) const {
    const std::vector<NodeId>& readers = rewriter_.readers(value);
    const bool is_read =
        std::any_of(readers.begin(), readers.end(), [&](NodeId reader) { return reader == kNone || reader >= end; });
    return is_read && memory_.is_whole_until(value, rewriter_.value(value).producer, end);
  }

  // The tensor that a chain begins with has to be there until all parts have been read in any case, and to take no more
  // bytes to read than the whole. Parts that are computed twice then cost no more bytes than the whole did.
  void compute_parts(NodeId last) {
    const ValueId whole = rewriter_.output(last);
    if (type(whole).shape.empty() || rewriter_.readers(whole).empty()) return;
    std::vector<Part> parts;
    NodeId end = last;  // the last reader of parts
    int64_t bytes = 0;  // of parts
    NodeId before = kNone;
    for (const NodeId reader : rewriter_.readers(whole)) {
      if (reader == kNone) return;
      if (reader == std::exchange(before, reader)) continue;
      const auto more = parts_of(reader, whole);
      if (!more) return;
      for (const Part& part : *more) {
        for (const NodeId of_part : rewriter_.readers(part.value)) {
          if (of_part == kNone) return;
          end = std::max(end, of_part);
        }
        bytes += type(part.value).bytes();
        parts.push_back(part);
      }
    }
    if (bytes > type(whole).bytes()) return;
    const std::vector<Chain> chains = chains_to(last);
    const auto chain = std::find_if(chains.rbegin(), chains.rend(), [&](const Chain& each) {
      return type(each.from).bytes() <= type(whole).bytes() && is_kept_until(each.from, end);
    });
    if (chain == chains.rend()) return;
    for (const Part& part : parts) compute(*chain, part);
    for (const NodeId reader : std::set<NodeId>(rewriter_.readers(whole).begin(), rewriter_.readers(whole).end())) {
      rewriter_.remove(reader);
    }
  }

  // The chain for a part, right before a node.
  ValueId add_chain(const Chain& chain, ValueId from, NodeId at, const std::string& name) {
    std::map<ValueId, ValueId> made = {{chain.from, from}};
    ValueId result = from;
    for (const NodeId n : chain.nodes) {
      const Node node = rewriter_.node(n);
      std::vector<ValueId> inputs = node.inputs;
      for (ValueId& input : inputs) {
        if (const auto known = made.find(input); known != made.end()) input = known->second;
      }
      result = rewriter_.add_before(at, node.op->qualified_name(), fmt::format("{}.{}", name, made.size()),
                                    std::move(inputs), node.attributes);
      made[node.output()] = result;
    }
    return result;
  }
  void compute(const Chain& chain, const Part& part) {
    const std::string name = rewriter_.value(part.value).name;
    const NodeId later = first_later(part.mover, part.value);
    const ValueId from = rewriter_.add_before(part.mover, op::Slice, name + ".from", {chain.from}, part.slice);
    const ValueId made = add_chain(chain, from, part.mover, name);
    if (later != kNone) {
      const ValueId again = add_chain(chain, from, later, name + " again");
      for (const NodeId reader : std::vector<NodeId>(rewriter_.readers(part.value))) {
        if (rewriter_.node(reader).stage == Stage::Forward) continue;
        std::vector<ValueId> inputs = rewriter_.node(reader).inputs;
        std::replace(inputs.begin(), inputs.end(), part.value, again);
        rewriter_.set_inputs(reader, std::move(inputs));
      }
    }
    rewriter_.replace_reads(part.value, made);
  }

  Graph& graph_;
  Rewriter rewriter_;
  MemoryHomes memory_;
};

}  // namespace

void compute_parts(Graph& graph) {
  PartComputation(graph).run();
}

}  // namespace arbalest
