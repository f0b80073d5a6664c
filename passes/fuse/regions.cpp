// SPDX-License-Identifier: Apache-2.0

// Elementwise operators of one shape that hand results to each other become regions, each one kernel: what stays in a
// region is never stored. Sums over rows join the region that makes or reads what they add up: those for biases and
// batch norms, and those of each sample, such as means of pixels. Regions compute again what they read of another
// region, where that moves fewer bytes.

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <stdexcept>

#include "ops/regions/region.h"
#include "passes/fuse/memory_homes.h"
#include "passes/fuse/row_sums.h"
#include "passes/passes.h"
#include "passes/rewriter.h"

namespace arbalest {
namespace {

constexpr int64_t kNear = 24;    // nodes between operators that are joined because they read the same tensor
constexpr size_t kDeepest = 32;  // operators one after the other that are computed again

// The value whose elements lie in memory as those of `value` do, in rows as long, and that no such view makes.
ValueId behind_views(const Graph& graph, ValueId value) {
  const auto channels = [&](ValueId id) {
    const TensorType& type = graph.values[id].type;
    return type.shape.empty() ? 0 : type.shape[innermost_axis(type)];
  };
  while (true) {
    const NodeId producer = graph.values[value].producer;
    if (producer == kNone) return value;
    const Node& node = graph.nodes[producer];
    const bool turns = node.is(op::TransposeInPlace);
    if (!node.op->reshapes && !turns) return value;
    const TensorType& from = graph.values[node.input()].type;
    const bool in_order = turns || from.layout == Layout::RowMajor;
    if (!in_order || channels(node.input()) != channels(value)) return value;
    value = node.input();
  }
}

// Which nodes have to run before which: readers after producers, and what writes over memory after its readers.
class Order {
 public:
  explicit Order(const Graph& graph) : followers_(graph.nodes.size()), memory_(graph) {
    std::map<ValueId, std::vector<NodeId>> readers;  // of memory, so far
    for (const NodeId n : graph.nodes.ids()) {
      const Node& node = graph.nodes[n];
      for (const auto& [output, input] : node.op->aliases) {
        const bool has = size_t(output) < node.outputs.size() && size_t(input) < node.inputs.size();
        if (!has || node.outputs[size_t(output)] == kNone || node.inputs[size_t(input)] == kNone || is_view(node)) {
          continue;
        }
        for (const NodeId reader : readers[memory_.home(node.inputs[size_t(input)])]) {
          followers_[reader].push_back(n);
        }
      }
      for (ValueId input : node.inputs) {
        if (input == kNone) continue;
        if (const auto sum = row_sum(graph, node); sum && !sum->by_sample()) {
          input = behind_views(graph, input);  // which is what its region reads
        }
        readers[memory_.home(input)].push_back(n);
        const NodeId producer = graph.values[input].producer;
        if (producer != kNone) followers_[producer].push_back(n);
      }
    }
  }
  const std::vector<NodeId>& followers(NodeId node) const { return followers_[node]; }
  const std::vector<NodeId>& writers(ValueId value) const { return memory_.writers(value); }
  const MemoryHomes& memory() const { return memory_; }

 private:
  Table<NodeId, std::vector<NodeId>> followers_;
  MemoryHomes memory_;
};

class Regions {
 public:
  Regions(Graph& graph, bool aside)
      : graph_(graph), aside_(aside), order_(graph), rewriter_(graph), groups_(graph.nodes.size()) {
    for (size_t n = 0; n < groups_.size(); ++n) {
      group_.push_back(n);
      groups_[n].members = {NodeId(n)};
    }
  }

  void run() {
    for (const NodeId n : rewriter_.ids()) {
      if (!is_member(n)) continue;
      for (const ValueId input : operands(n)) {
        const NodeId producer = rewriter_.value(input).producer;
        if (producer != kNone && may_join(producer)) join(producer, n);
      }
    }
    join_readers();
    compute_again();
    // All are looked at before any is written.
    std::vector<Region> regions;
    for (const Group& group : groups_) {
      if (std::optional<Region> region = region_of(group)) regions.push_back(std::move(*region));
    }
    for (const Region& region : regions) read_.insert(region.inputs.begin(), region.inputs.end());
    put_in_order();
    for (const Group& group : groups_) {
      for (const NodeId member : group.needed ? std::vector<NodeId>() : group.members) rewriter_.remove(member);
    }
    for (Region& region : regions) write(region);
    rewriter_.finish();
  }

 private:
  struct Group {
    std::vector<NodeId> members;  // in order; empty: they are in another group
    std::set<NodeId> again;       // of other groups, computed once more
    bool needed = true;           // false: all that others read of it they compute again
  };

  // The inputs that the node's function has: constants that were moved into attributes are left out. A small operand is
  // read as it was before it was cast, since each element is cast on the way.
  std::vector<ValueId> operands(NodeId n) const {
    const Node& node = rewriter_.node(n);
    if (const auto sum = row_sum(graph_, node)) {
      return {sum->by_sample() ? node.input() : behind_views(graph_, node.input())};
    }
    std::vector<ValueId> inputs(node.inputs.begin(),
                                node.inputs.begin() + std::ptrdiff_t(node.op->element->arguments.size()));
    for (ValueId& input : inputs) {
      const NodeId cast = rewriter_.producer(input, op::Cast);
      if (cast == kNone || rewriter_.shape(input) == rewriter_.shape(node.output())) continue;
      const ValueId before = rewriter_.input(cast);
      if (is_number(rewriter_.value(before).type.dtype) && order_.writers(before).empty()) input = before;
    }
    return inputs;
  }
  const TensorType& space(NodeId n) const { return rewriter_.value(may_join(n) ? result(n) : operands(n)[0]).type; }
  ValueId result(NodeId n) const { return rewriter_.output(n); }

  // Whether a region may have the node: as a step, or as a sum.
  bool is_member(NodeId n) const {
    return may_join(n) || (row_sum(graph_, rewriter_.node(n)) && !(aside_ && is_small_gradient(n)));
  }
  // Whether the node is a small gradient of a parameter that nothing else reads, such as a bias's, of a tensor that is
  // stored for a product.
  bool is_small_gradient(NodeId n) const {
    const Node& node = rewriter_.node(n);
    const auto updates = [&](NodeId reader) { return rewriter_.node(reader).stage == Stage::Update; };
    const std::vector<NodeId>& readers = rewriter_.readers(result(n));
    if (node.stage != Stage::Backward || !node.is(op::ChannelSum) ||
        rewriter_.value(node.input()).type.bytes() >= kLeastSummedBytes ||
        !std::all_of(readers.begin(), readers.end(), updates)) {
      return false;
    }
    const std::vector<NodeId>& others = rewriter_.readers(operands(n)[0]);
    return std::any_of(others.begin(), others.end(),
                       [&](NodeId other) { return !may_join(other) && !row_sum(graph_, rewriter_.node(other)); });
  }
  bool may_join(NodeId n) const { return is_region_step(graph_, rewriter_.node(n)); }

  bool one_space(NodeId a, NodeId b) const {
    return space(a).shape == space(b).shape && space(a).layout == space(b).layout &&
           rewriter_.node(a).stage == rewriter_.node(b).stage;
  }

  // The values that a group reads, and those that others read of it.
  struct Ends {
    std::vector<ValueId> inputs, outputs;
    size_t steps = 0;
    bool fits() const {
      return inputs.size() <= RegionProgram::kMostInputs && outputs.size() <= RegionProgram::kMostOutputs &&
             steps <= RegionProgram::kMostSteps;
    }
  };
  static std::vector<NodeId> computed(const Group& group) {
    std::set<NodeId> all = group.again;
    all.insert(group.members.begin(), group.members.end());
    return {all.begin(), all.end()};
  }
  Ends ends_of(const Group& group) const {
    Ends ends;
    const std::vector<NodeId> all = computed(group);
    const std::set<NodeId> own(all.begin(), all.end());
    for (const NodeId n : all) {
      ends.steps += may_join(n) ? 1 : 0;
      for (const ValueId input : operands(n)) {
        const bool inside = own.contains(rewriter_.value(input).producer);
        if (!inside && std::find(ends.inputs.begin(), ends.inputs.end(), input) == ends.inputs.end()) {
          ends.inputs.push_back(input);
        }
      }
    }
    for (const NodeId n : group.members) {
      // While groups are joined, members are in two.
      std::set<std::optional<size_t>> reading = reading_groups(n);
      for (const NodeId member : group.members) reading.erase(group_[member]);
      if (!reading.empty()) ends.outputs.push_back(result(n));
    }
    return ends;
  }
  // The groups that read the node's result and do not compute it: those of its readers, and those that compute a reader
  // again. None stands for the graph.
  std::set<std::optional<size_t>> reading_groups(NodeId n) const {
    std::set<std::optional<size_t>> found;
    const size_t own = group_[n];
    const auto add = [&](size_t group) {
      const Group& other = groups_[group];
      if (group != own && other.needed && !other.again.contains(n)) found.insert(group);
    };
    if (rewriter_.value(result(n)).view.base != kNone) found.insert(std::nullopt);
    for (const NodeId reader : rewriter_.readers(result(n))) {
      if (reader == kNone) {
        found.insert(std::nullopt);
        continue;
      }
      add(group_[reader]);
      const auto again = again_in_.find(reader);
      if (again == again_in_.end()) continue;
      for (const size_t group : again->second) add(group);
    }
    return found;
  }

  // Whether nothing that follows one of the members has to run before another one.
  bool is_closed(const std::vector<NodeId>& members, size_t a, size_t b) const {
    std::vector<size_t> open;
    std::set<size_t> seen;
    const auto follow = [&](NodeId n) {
      for (const NodeId next : order_.followers(n)) {
        if (seen.insert(group_[next]).second) open.push_back(group_[next]);
      }
    };
    for (const NodeId n : members) {
      for (const NodeId next : order_.followers(n)) {
        const size_t group = group_[next];
        if (group != a && group != b && seen.insert(group).second) open.push_back(group);
      }
    }
    while (!open.empty()) {
      const size_t group = open.back();
      open.pop_back();
      if (group == a || group == b) return false;
      for (const NodeId n : groups_[group].members) follow(n);
    }
    return true;
  }

  void join(NodeId first, NodeId second) {
    const size_t a = group_[first], b = group_[second];
    if (a == b || !one_space(first, second)) return;
    Group both;
    std::merge(groups_[a].members.begin(), groups_[a].members.end(), groups_[b].members.begin(),
               groups_[b].members.end(), std::back_inserter(both.members));
    if (!ends_of(both).fits() || reads_own_sum(both) || compares_own(both) || !is_closed(both.members, a, b)) return;
    for (const NodeId n : both.members) group_[n] = a;
    groups_[a] = std::move(both);
    groups_[b] = {};
  }

  // Whether a step needs a sum of the group, which is known only once all elements are.
  // Whether a member compares what another one makes, which is not stored then.
  bool compares_own(const Group& group) const {
    const auto is_compared = [&](NodeId made) {
      return std::any_of(group.members.begin(), group.members.end(),
                         [&](NodeId n) { return compares(n, result(made)); });
    };
    return std::any_of(group.members.begin(), group.members.end(), is_compared);
  }
  bool reads_own_sum(const Group& group) const {
    const auto is_own_sum = [&](ValueId value) {
      const NodeId producer = rewriter_.value(value).producer;
      return producer != kNone && !may_join(producer) &&
             std::binary_search(group.members.begin(), group.members.end(), producer);
    };
    return std::any_of(group.members.begin(), group.members.end(), [&](NodeId n) {
      const std::vector<ValueId> inputs = operands(n);
      return std::any_of(inputs.begin(), inputs.end(), is_own_sum);
    });
  }

  // Operators near each other that read the same tensor read it once.
  void join_readers() {
    std::map<ValueId, NodeId> before;  // the last reader so far
    for (const NodeId n : rewriter_.ids()) {
      if (!is_member(n)) continue;
      for (const ValueId input : operands(n)) {
        if (space(n).shape != rewriter_.shape(input)) continue;
        const auto [known, first] = before.try_emplace(input, n);
        if (!first && n - known->second <= kNear) join(known->second, n);
        known->second = n;
      }
    }
  }

  int64_t bytes(ValueId value) const { return rewriter_.value(value).type.bytes(); }

  // The values that a group reads in order to have another one, besides its inputs, and the nodes that it computes.
  struct Price {
    std::set<ValueId> reads;
    std::set<NodeId> nodes;
  };
  struct Buyer {
    const Group& group;
    std::vector<ValueId> inputs;
    bool numbers_cost = true;                            // single numbers that are read count as bytes
    std::map<ValueId, std::optional<Price>> known = {};  // of values that others may read as they are
  };
  int64_t bytes(const std::optional<Price>& price, const Buyer& buyer) const {
    int64_t all = 0;
    for (const ValueId value : price->reads) {
      if (buyer.numbers_cost || rewriter_.value(value).type.elements() > 1) all += bytes(value);
    }
    return all;
  }
  // The price of the value as it is; nothing if the group cannot read it. `kept`: memory holds it.
  std::optional<Price> price_stored(ValueId value, const Buyer& buyer, bool kept) const {
    if (!kept || !is_whole_until(value, buyer.group.members.back())) return std::nullopt;
    const bool has = std::find(buyer.inputs.begin(), buyer.inputs.end(), value) != buyer.inputs.end();
    return has ? Price() : Price{{value}, {}};
  }
  // The same, or that of computing it again.
  std::optional<Price> price(ValueId value, Buyer& buyer, size_t depth, bool kept) const {
    if (const auto known = buyer.known.find(value); kept && known != buyer.known.end()) return known->second;
    std::optional<Price> found = price_stored(value, buyer, kept);
    const std::optional<Price> again = price_again(value, buyer, depth);
    if (again && (!found || bytes(again, buyer) <= bytes(found, buyer))) found = again;
    if (kept) buyer.known[value] = found;
    return found;
  }
  // Whether the node asks if elements of the value equal those of another one, as the gradient of a maximum asks which
  // element it was. The maximum is one of those that are stored, and rounded. What is computed again is not.
  bool compares(NodeId n, ValueId value) const {
    if (!may_join(n)) return false;
    const ElementFunction& function = *rewriter_.node(n).op->element;
    const std::vector<ValueId> read = operands(n);
    for (size_t i = 0; i < read.size(); ++i) {
      for (size_t other = 0; read[i] == value && other < read.size(); ++other) {
        const std::string &a = function.arguments[i], &b = function.arguments[other];
        if (function.text.find(a + " == " + b) != std::string::npos) return true;
        if (function.text.find(b + " == " + a) != std::string::npos) return true;
      }
    }
    return false;
  }
  // `stored`: its operands are, whatever is so far.
  std::optional<Price> price_again(ValueId value, Buyer& buyer, size_t depth, bool stored = false) const {
    const NodeId producer = rewriter_.value(value).producer;
    if (producer == kNone || depth == kDeepest || !may_join(producer)) return std::nullopt;
    const std::vector<NodeId> has = computed(buyer.group);
    if (std::any_of(has.begin(), has.end(), [&](NodeId n) { return compares(n, value); })) return std::nullopt;
    if (buyer.group.again.contains(producer)) return Price();
    const TensorType& own = space(buyer.group.members[0]);
    const bool recomputable =
        may_repeat(producer) && space(producer).shape == own.shape && space(producer).layout == own.layout;
    if (!recomputable) return std::nullopt;
    Price again{{}, {producer}};
    for (const ValueId input : operands(producer)) {
      const bool is_there = stored || is_stored(input);
      const std::optional<Price> part =
          compares(producer, input) ? price_stored(input, buyer, is_there) : price(input, buyer, depth + 1, is_there);
      if (!part) return std::nullopt;
      again.reads.insert(part->reads.begin(), part->reads.end());
      again.nodes.insert(part->nodes.begin(), part->nodes.end());
    }
    return again;
  }
  bool is_whole_until(ValueId value, NodeId last) const {
    return order_.memory().is_whole_until(value, rewriter_.value(value).producer, last);
  }
  // Whether memory holds the value whatever is computed again.
  bool is_stored(ValueId value) const {
    const NodeId producer = rewriter_.value(value).producer;
    if (producer == kNone || !may_join(producer)) return true;
    return !reading_groups(producer).empty();
  }

  void compute_again() {
    for (NodeId n = rewriter_.ids().last; n-- > 0;) {
      if (may_join(n) && may_repeat(n)) consider(n);
    }
  }
  bool may_repeat(NodeId n) const {
    const Stage stage = rewriter_.node(n).stage;
    return stage == Stage::Forward || stage == Stage::Backward;
  }
  // A result that only other groups read is not stored if each of them can compute it for fewer bytes in all, or else
  // from its operands, stored instead: a cast to float from half its bytes. A result of the forward pass would be kept
  // for long, so single numbers that are read for it do not weigh against that. Where forward has to store it, backward
  // still need not read it.
  void consider(NodeId n) {
    const bool forward = rewriter_.node(n).stage == Stage::Forward;
    for (const bool from_operands : {false, true}) {
      if (compute_elsewhere(n, from_operands, true)) return;
      if (forward && compute_elsewhere(n, from_operands, false)) return;
    }
    if (forward) compute_in_backward(n);
  }
  // Whether the groups that read the node's result can compute it, and then do.
  bool compute_elsewhere(NodeId n, bool from_operands, bool numbers_cost) {
    std::set<size_t> buyers;
    for (const std::optional<size_t>& group : reading_groups(n)) {
      if (!group || !may_compute(*group, n)) return false;
      buyers.insert(*group);
    }
    int64_t gain = bytes(result(n));
    for (const ValueId operand : from_operands ? operands(n) : std::vector<ValueId>()) {
      if (!is_stored(operand)) gain -= bytes(operand);
    }
    if (!buyers.empty()) {
      std::optional<Purchase> bought = purchase(buyers, n, from_operands, numbers_cost);
      if (!bought || gain + bought->gain <= 0) return false;
      compute_in(std::move(*bought));
    }
    leave_out_unless_needed(group_[n]);
    return true;
  }
  // Groups of backward compute a result that forward stores, so that it is not kept for them. They do if nothing else
  // keeps it, if together they read no more bytes than now, and if what they keep instead is smaller.
  void compute_in_backward(NodeId n) {
    const ValueId value = result(n);
    std::set<size_t> buyers;
    for (const std::optional<size_t>& group : reading_groups(n)) {
      if (!group) return;
      const Stage stage = rewriter_.node(groups_[*group].members[0]).stage;
      if (stage == Stage::Forward) continue;
      if (stage != Stage::Backward || !may_compute(*group, n)) return;
      buyers.insert(*group);
    }
    if (buyers.empty() || is_viewed_in_backward(value)) return;
    std::optional<Purchase> bought = purchase(buyers, n, false, false);
    if (!bought || bought->gain < 0) return;
    int64_t kept = 0;
    for (const ValueId read : bought->reads) kept += is_read_in_backward(read) ? 0 : bytes(read);
    if (kept < bytes(value)) compute_in(std::move(*bought));
  }
  bool is_read_in_backward(ValueId value) const {
    const auto is_in_backward = [&](NodeId reader) {
      return reader == kNone || rewriter_.node(reader).stage != Stage::Forward;
    };
    if (is_viewed_in_backward(value)) return true;
    const NodeId producer = rewriter_.value(value).producer;
    if (producer != kNone && may_join(producer)) {  // groups that compute it do not read it
      const std::set<std::optional<size_t>> groups = reading_groups(producer);
      return std::any_of(groups.begin(), groups.end(), [&](const std::optional<size_t>& group) {
        return is_in_backward(group ? groups_[*group].members[0] : kNone);
      });
    }
    const std::vector<NodeId>& readers = rewriter_.readers(value);
    return std::any_of(readers.begin(), readers.end(), is_in_backward);
  }
  // Whether backward reads the value through a view that forward made.
  bool is_viewed_in_backward(ValueId value) const {
    const std::vector<NodeId>& readers = rewriter_.readers(value);
    return std::any_of(readers.begin(), readers.end(), [&](NodeId reader) {
      return reader != kNone && is_view(rewriter_.node(reader)) && is_read_in_backward(result(reader));
    });
  }
  bool may_compute(size_t group, NodeId n) const {
    const NodeId member = groups_[group].members[0];
    return is_member(member) && may_repeat(member) && one_space_with(group, n);
  }
  // Takes what the group compares with stored values from memory, although another of its nodes could have it computed.
  void read_compared(Group& group) const {
    const auto is_compared = [&](NodeId again) {
      const std::vector<NodeId> all = computed(group);
      return std::any_of(all.begin(), all.end(), [&](NodeId n) { return compares(n, result(again)); });
    };
    const auto is_read = [&](NodeId again) {
      const std::vector<NodeId> all = computed(group);
      return std::any_of(all.begin(), all.end(), [&](NodeId n) {
        const std::vector<ValueId> read = operands(n);
        return std::find(read.begin(), read.end(), result(again)) != read.end();
      });
    };
    if (std::erase_if(group.again, is_compared) == 0) return;
    while (std::erase_if(group.again, [&](NodeId again) { return !is_read(again); }) > 0) continue;
  }
  // The groups as they are with a node that each of them computes.
  struct Purchase {
    std::map<size_t, Group> changed;
    std::set<ValueId> reads;
    int64_t gain = 0;  // bytes that they no longer read
  };
  std::optional<Purchase> purchase(const std::set<size_t>& buyers, NodeId n, bool from_operands,
                                   bool numbers_cost) const {
    Purchase all;
    for (const size_t id : buyers) {
      Group group = groups_[id];
      Buyer buyer{group, ends_of(group).inputs, numbers_cost};
      const std::optional<Price> found = price_again(result(n), buyer, 0, from_operands);
      if (!found) return std::nullopt;
      all.gain += bytes(result(n)) - bytes(found, buyer);
      all.reads.insert(found->reads.begin(), found->reads.end());
      group.again.insert(found->nodes.begin(), found->nodes.end());
      read_compared(group);
      if (!ends_of(group).fits()) return std::nullopt;
      all.changed.emplace(id, std::move(group));
    }
    return all;
  }
  void compute_in(Purchase bought) {
    for (auto& [id, group] : bought.changed) {
      for (const NodeId before : groups_[id].again) again_in_[before].erase(id);
      for (const NodeId again : group.again) again_in_[again].insert(id);
      groups_[id] = std::move(group);
    }
  }
  void leave_out_unless_needed(size_t id) {
    Group& group = groups_[id];
    if (!ends_of(group).outputs.empty()) return;
    group.needed = false;
    for (const NodeId again : group.again) again_in_[again].erase(id);
    group.again.clear();
  }
  bool one_space_with(size_t group, NodeId n) const {
    const NodeId member = groups_[group].members[0];
    return space(member).shape == space(n).shape && space(member).layout == space(n).layout;
  }

  // Groups after what they read and before what writes over it, otherwise in the order of their last members.
  void put_in_order() {
    std::vector<std::set<size_t>> followers(groups_.size());
    const auto add = [&](size_t before, size_t after) {
      if (before != after) followers[before].insert(after);
    };
    for (const NodeId n : rewriter_.ids()) {
      for (const NodeId next : order_.followers(n)) add(group_[n], group_[next]);
    }
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (groups_[g].again.empty()) continue;
      for (const ValueId input : ends_of(groups_[g]).inputs) {
        const NodeId producer = rewriter_.value(input).producer;
        if (producer != kNone) add(group_[producer], g);
        for (const NodeId writer : order_.writers(input)) {  // the earlier ones made what the group reads
          if (writer > groups_[g].members.back()) add(g, group_[writer]);
        }
      }
    }
    std::vector<int> waits(groups_.size(), 0);
    for (const std::set<size_t>& all : followers) {
      for (const size_t next : all) ++waits[next];
    }
    std::priority_queue<NodeId, std::vector<NodeId>, std::greater<>> ready;  // by last member
    for (size_t g = 0; g < groups_.size(); ++g) {
      if (waits[g] == 0 && !groups_[g].members.empty()) ready.push(groups_[g].members.back());
    }
    int64_t place = 0;
    while (!ready.empty()) {
      const size_t group = group_[ready.top()];
      ready.pop();
      for (const NodeId member : groups_[group].members) rewriter_.put(member, 2 * place++);
      for (const size_t next : followers[group]) {
        if (--waits[next] == 0) ready.push(groups_[next].members.back());
      }
    }
    if (place != int64_t(rewriter_.ids().last)) throw std::logic_error("regions wait for each other");
  }

  // The node that a group becomes.
  struct Region {
    std::vector<NodeId> members;
    std::vector<ValueId> inputs, outputs;
    std::vector<TensorType> types;  // of the outputs, as the region makes them
    Attributes attributes;
  };
  std::optional<Region> region_of(const Group& group) const {
    const std::vector<NodeId> all = computed(group);
    if (!group.needed || all.size() < 2) return std::nullopt;
    Ends ends = ends_of(group);
    if (ends.outputs.empty()) return std::nullopt;  // nothing needs it
    RegionProgram program{.inputs = ends.inputs.size()};
    std::map<ValueId, size_t> place;
    for (size_t i = 0; i < ends.inputs.size(); ++i) place[ends.inputs[i]] = i;
    for (const NodeId n : all) {
      if (!may_join(n)) continue;
      RegionStep step{rewriter_.node(n).op, {}, {}};
      for (const ValueId input : operands(n)) step.operands.push_back(place.at(input));
      if (step.op->element->numbers) step.numbers = step.op->element->numbers(rewriter_.node(n));
      place[result(n)] = program.inputs + program.steps.size();
      program.steps.push_back(std::move(step));
    }
    // Sums come last.
    const auto is_step = [&](ValueId output) { return may_join(rewriter_.value(output).producer); };
    std::stable_partition(ends.outputs.begin(), ends.outputs.end(), is_step);
    const TensorType& space = this->space(group.members[0]);
    std::vector<TensorType> types;
    std::vector<DataType> elements;
    for (const ValueId output : ends.outputs) {
      const NodeId producer = rewriter_.value(output).producer;
      elements.push_back(rewriter_.value(output).type.dtype);
      types.push_back(space);
      if (is_step(output)) {
        program.results.push_back(place.at(output) - program.inputs);
      } else {
        program.sums.push_back(*row_sum(graph_, rewriter_.node(producer)));
        program.sums.back().of = place.at(operands(producer)[0]);
        types.back() = sum_type(space, program.sums.back());
      }
      types.back().dtype = elements.back();
    }
    Attributes attributes = region_attributes(program, space, elements);
    return Region{group.members, std::move(ends.inputs), std::move(ends.outputs), std::move(types),
                  std::move(attributes)};
  }
  // Nodes that show an output otherwise, and copy it to where the gradient of a parameter lies, would copy what it has
  // in that type already: the region makes the last of such values itself.
  void take_copies(ValueId& output, const TensorType& type) {
    std::vector<NodeId> copies;
    size_t taken = 0;
    for (ValueId last = output; rewriter_.value(last).view.base == kNone; last = result(copies.back())) {
      const NodeId reader = rewriter_.only_reader(last);
      const bool copies_it = rewriter_.is(reader, op::Reshape) || rewriter_.is(reader, op::Cast);
      if (!copies_it || read_.contains(last) || computed(groups_[group_[reader]]).size() > 1) break;
      if (rewriter_.value(result(reader)).type.dtype != type.dtype) break;
      copies.push_back(reader);
      if (rewriter_.value(result(reader)).type == type) taken = copies.size();
    }
    for (size_t i = 0; i < taken; ++i) {
      output = result(copies[i]);
      rewriter_.remove(copies[i]);
    }
  }
  // One node, in the place of the last member.
  void write(Region& region) {
    const NodeId at = region.members.back();
    region.members.pop_back();
    for (const NodeId member : region.members) rewriter_.remove(member);
    std::vector<std::pair<size_t, ValueId>> shown;  // sums that are not of the shape that was wanted
    for (size_t k = 0; k < region.outputs.size(); ++k) {
      take_copies(region.outputs[k], region.types[k]);
      if (region.types[k] == rewriter_.value(region.outputs[k]).type) continue;
      shown.emplace_back(k, region.outputs[k]);
      region.outputs[k] = rewriter_.add_value(rewriter_.value(region.outputs[k]).name + ".rows", region.types[k]);
    }
    rewriter_.become(at, op::Region, std::move(region.inputs), region.outputs, std::move(region.attributes));
    for (const auto& [k, wanted] : shown) {
      // The region may have the name of its last member, which is the sum's.
      const ValueId view =
          rewriter_.add_after(at, op::Reshape, rewriter_.value(wanted).name + ".shaped", {region.outputs[k]},
                              {{"shape", rewriter_.shape(wanted)}, {"allowzero", int64_t{1}}});
      rewriter_.set_outputs(rewriter_.value(view).producer, {wanted});
    }
  }

  Graph& graph_;
  const bool aside_;
  Order order_;
  Rewriter rewriter_;
  std::vector<Group> groups_;
  Table<NodeId, size_t> group_;
  std::map<NodeId, std::set<size_t>> again_in_;  // the groups that compute a node again
  std::set<ValueId> read_;                       // by regions, whatever their members read in the graph
};

}  // namespace

void fuse_regions(Graph& graph, bool aside) {
  Regions(graph, aside).run();
}

}  // namespace arbalest
