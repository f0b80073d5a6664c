// SPDX-License-Identifier: Apache-2.0

// Nodes come earlier or later than a graph's file has them, where that hides their time or saves memory.
#include <algorithm>
#include <deque>

#include "graph/op.h"
#include "passes/passes.h"

namespace arbalest {
namespace {

// Moves nodes that write large parameter gradients to later positions, at which they fit below the peak of memory.
class Delays {
 public:
  Delays(Graph& graph, ValueId gradients) : graph_(graph), gradients_(gradients), readers_(graph.consumers()) {}

  void run() {
    Table<NodeId, int64_t> key(graph_.nodes.size());
    for (const NodeId n : key.ids()) key[n] = 2 * int64_t(n);
    NodeId end = graph_.nodes.end_id();  // of the backward pass: results of updates need no memory of their own
    while (end > 0 && graph_.nodes[end - 1].stage != Stage::Backward) --end;
    if (end == 0) return;
    Table<NodeId, int64_t> live = live_bytes();
    const int64_t peak = *std::max_element(live.begin(), live.begin() + int32_t(end));
    for (NodeId n = 0; n < end; ++n) {
      const int64_t bytes = gradient_bytes(graph_.nodes[n]);
      if (bytes < kLargeGradient) continue;
      NodeId at = end;  // the first position from which on there is room
      while (at > n && live[at - 1] + bytes <= peak) --at;
      const NodeId latest = std::min(first_reader(n), first_over_inputs(n));
      if (at == end || at <= n + 1 || at > latest) continue;
      key[n] = 2 * int64_t(at) - 1;
      for (NodeId later = at; later < std::min(at + kLives, end); ++later) live[later] += bytes;
    }
    reorder_nodes(graph_, key);
  }

 private:
  static constexpr int32_t kLives = 5;  // nodes, until it has been updated

  // Bytes of parameter gradients that the node writes. 0 if it writes anything else, or reads more than a quarter of
  // them: its inputs have to wait for it.
  int64_t gradient_bytes(const Node& node) const {
    if (node.stage != Stage::Backward) return 0;
    int64_t bytes = 0, read = 0;
    for (const ValueId output : node.outputs) {
      if (output == kNone) continue;
      if (storage_of(graph_, output).base != gradients_ || output == gradients_) return 0;
      bytes += graph_.values[output].type.bytes();
    }
    for (const ValueId input : node.inputs) read += input == kNone ? 0 : graph_.values[input].type.bytes();
    return read <= bytes / 4 ? bytes : 0;
  }

  // The first node that reads a result of `node`. Updates do not count: they run when all gradients are there.
  NodeId first_reader(NodeId node) const {
    NodeId first = graph_.nodes.end_id();
    for (const ValueId output : graph_.nodes[node].outputs) {
      if (output == kNone) continue;
      for (const NodeId reader : readers_[output]) first = std::min(first, reader);
    }
    return first;
  }

  // The first node after `node` that may write over the memory of one of its inputs (Op::aliases).
  NodeId first_over_inputs(NodeId node) const {
    Table<ValueId, ValueId> memory(graph_.values.size());  // the one whose memory it has
    for (const ValueId v : memory.ids()) memory[v] = storage_of(graph_, v).base;
    const std::vector<ValueId>& inputs = graph_.nodes[node].inputs;
    const auto count = graph_.nodes.end_id();
    for (NodeId n = 0; n < count; ++n) {
      const Node& other = graph_.nodes[n];
      for (const auto& [output, input] : other.op->aliases) {
        if (size_t(output) >= other.outputs.size() || size_t(input) >= other.inputs.size()) continue;
        const ValueId to = other.outputs[size_t(output)], from = other.inputs[size_t(input)];
        if (to == kNone || from == kNone) continue;
        memory[to] = memory[from];
        const auto is_there = [&](ValueId value) { return value != kNone && memory[value] == memory[from]; };
        if (n > node && std::any_of(inputs.begin(), inputs.end(), is_there)) return n;
      }
    }
    return count;
  }

  // Bytes of live activations at each node. Activations that are written over others count twice.
  Table<NodeId, int64_t> live_bytes() const {
    const NodeId end = graph_.nodes.end_id();
    Table<ValueId, NodeId> first(graph_.values.size(), kNone), last(graph_.values.size(), kNone);
    const auto touch = [&](ValueId value, NodeId node) {
      if (value == kNone) return;
      const ValueId base = storage_of(graph_, value).base;
      if (graph_.values[base].role != Role::Activation || base == gradients_) return;
      if (first[base] == kNone) first[base] = node;
      last[base] = node;
    };
    for (const NodeId n : graph_.nodes.ids()) {
      for (const ValueId input : graph_.nodes[n].inputs) touch(input, n);
      for (const ValueId output : graph_.nodes[n].outputs) touch(output, n);
    }
    for (const ValueId output : graph_.outputs) touch(output, end - 1);
    Table<NodeId, int64_t> live(graph_.nodes.size() + 1, 0);  // changes, until they are added up
    for (const ValueId v : first.ids()) {
      if (first[v] == kNone) continue;
      const int64_t bytes = graph_.values[v].type.bytes();
      live[first[v]] += bytes;
      live[last[v] + 1] -= bytes;
    }
    for (NodeId n = 1; n <= end; ++n) live[n] += live[n - 1];
    return live;
  }

  Graph& graph_;
  const ValueId gradients_;
  const Table<ValueId, std::vector<NodeId>> readers_;
};

// Weights that are standardised, scaled or otherwise changed before they are read are ready some nodes before that. On
// GPUs these small kernels then run next to those of the layers before (nodes_aside() in the plan).
class Advances {
 public:
  explicit Advances(Graph& graph)
      : graph_(graph), of_weights_(made_of_weights(graph)), stays_(graph.values.size()), early_(graph.nodes.size()) {
    for (const ValueId output : graph.outputs) stays_[output] = true;
    for (const Carry& carry : graph.carries) stays_[carry.next] = true;
  }

  void run() {
    Table<NodeId, int64_t> key(graph_.nodes.size());
    std::deque<std::pair<NodeId, int64_t>> made;  // by early nodes so near that their results live at once, in bytes
    int64_t live = 0;
    for (const NodeId n : key.ids()) {
      while (!made.empty() && made.front().first + kAhead < n) {
        live -= made.front().second;
        made.pop_front();
      }
      const int64_t bytes = made_bytes(graph_.nodes[n]);
      early_[n] = may_advance(graph_.nodes[n]) && live + bytes <= kMostLive;
      key[n] = std::max<int64_t>(int64_t(n) - (early_[n] ? kAhead : 0), 0);
      if (!early_[n]) continue;
      live += bytes;
      made.emplace_back(n, bytes);
    }
    reorder_nodes(graph_, key);
  }

 private:
  // About four layers. A launch waits for all launches aside but the latest 64 (waits_for_aside()).
  static constexpr int32_t kAhead = 48;
  static constexpr int64_t kMostLive = 32 << 20;

  // Whether the node makes values of weights, of which nothing else is late: no state is written over.
  bool may_advance(const Node& node) const {
    const auto comes_early = [&](ValueId v) {
      const NodeId producer = v == kNone ? kNone : graph_.values[v].producer;
      return producer == kNone || early_[producer];
    };
    const auto is_passing = [&](ValueId v) { return v == kNone || (of_weights_[v] && !stays_[v]); };
    return node.stage == Stage::Forward && !node.outputs.empty() && (node.op->aliases.empty() || node.op->reshapes) &&
           std::all_of(node.outputs.begin(), node.outputs.end(), is_passing) &&
           std::all_of(node.inputs.begin(), node.inputs.end(), comes_early);
  }
  int64_t made_bytes(const Node& node) const {
    int64_t bytes = 0;
    for (const ValueId v : node.outputs) bytes += v == kNone || node.op->reshapes ? 0 : graph_.values[v].type.bytes();
    return bytes;
  }

  Graph& graph_;
  const Table<ValueId, bool> of_weights_;
  Table<ValueId, bool> stays_;  // when the step is over
  Table<NodeId, bool> early_;
};

}  // namespace

void delay_gradients(Graph& graph, const ArenaValues& arenas) {
  const auto update = std::find_if(graph.nodes.begin(), graph.nodes.end(),
                                   [](const Node& node) { return node.op->optimizer.has_value(); });
  if (update != graph.nodes.end() && updates_in_parts(*update, arenas)) Delays(graph, arenas.gradients).run();
}

void advance_weights(Graph& graph) {
  Advances(graph).run();
}

}  // namespace arbalest
