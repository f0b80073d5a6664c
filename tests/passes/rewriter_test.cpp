// SPDX-License-Identifier: Apache-2.0

// The Rewriter knows readers at any time, and puts nodes in order at the end.

#include "passes/rewriter.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "ops/builtin_ops.h"

using namespace arbalest;

namespace rewriter_test {
namespace {

// y = Relu (x); z = Add (y, y); out = Neg (z), which the graph gives; unread = Abs (x).
struct Chain {
  Graph graph;
  ValueId x, y, z, out;
  NodeId relu, add, neg, abs;

  Chain() {
    graph.registry = &builtin_ops();
    x = graph.add_value("x", {DataType::Float32, {2, 3}}, Role::Input);
    graph.inputs = {x};
    relu = node("Relu", "y", {x});
    y = made_by(relu);
    add = node("Add", "z", {y, y});
    z = made_by(add);
    neg = node("Neg", "out", {z});
    out = made_by(neg);
    graph.outputs = {out};
    abs = node("Abs", "unread", {x});
  }
  NodeId node(const char* op, const char* name, std::vector<ValueId> inputs) {
    const NodeId id = graph.add_node(graph.op(op), name, std::move(inputs), 1);
    infer(graph, id);
    return id;
  }
  ValueId made_by(NodeId id) const { return graph.nodes[id].outputs[0]; }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const Node& each : graph.nodes) names.push_back(each.name);
    return names;
  }
};

using Readers = std::vector<NodeId>;
using Names = std::vector<std::string>;

TEST_CASE("a value is read once for each input, and by the graph that gives it") {
  Chain c;
  const Rewriter rewriter(c.graph);
  CHECK(rewriter.readers(c.x) == Readers{c.relu, c.abs});
  CHECK(rewriter.readers(c.y) == Readers{c.add, c.add});
  CHECK(rewriter.readers(c.out) == Readers{kNone});
  CHECK(rewriter.only_reader(c.y) == kNone);
  CHECK(rewriter.only_reader(c.z) == c.neg);
  CHECK(rewriter.only_reader(c.z, "Neg") == c.neg);
  CHECK(rewriter.only_reader(c.z, "Relu") == kNone);
  CHECK(rewriter.producer(c.y, "Relu") == c.relu);
  CHECK(rewriter.producer(c.y, "Add") == kNone);
  CHECK(rewriter.producer(c.x, "Relu") == kNone);
  CHECK(rewriter.input(c.relu, 1) == kNone);
}

TEST_CASE("readers follow inputs that change, and values that go on to others") {
  Chain c;
  Rewriter rewriter(c.graph);
  rewriter.set_input(c.add, 1, c.x);
  CHECK(rewriter.readers(c.y) == Readers{c.add});
  CHECK(rewriter.readers(c.x) == Readers{c.relu, c.add, c.abs});
  rewriter.replace_uses(c.y, c.x);
  CHECK(rewriter.readers(c.y).empty());
  CHECK(rewriter.readers(c.x) == Readers{c.relu, c.add, c.add, c.abs});
  CHECK(rewriter.node(c.add).inputs == std::vector<ValueId>{c.x, c.x});
  rewriter.replace_uses(c.out, c.z);
  CHECK(rewriter.readers(c.z) == Readers{kNone, c.neg});
  CHECK(c.graph.outputs == std::vector<ValueId>{c.z});
}

TEST_CASE("what a node is read by and makes is gone with it, and its values may go to another") {
  Chain c;
  Rewriter rewriter(c.graph);
  rewriter.remove(c.neg);
  CHECK(rewriter.readers(c.z).empty());
  CHECK(rewriter.value(c.out).producer == kNone);
  rewriter.become(c.add, "Mul", {c.x, c.y}, {c.out}, {});
  CHECK(rewriter.is(c.add, "Mul"));
  CHECK(rewriter.value(c.out).producer == c.add);
  CHECK(rewriter.value(c.z).producer == kNone);
  rewriter.finish();
  CHECK(c.names() == Names{"y", "z", "unread"});
  CHECK(c.graph.values[c.out].producer == NodeId(1));
}

TEST_CASE("nodes are added and moved next to others, in the order in which they come") {
  Chain c;
  Rewriter rewriter(c.graph);
  c.graph.nodes[c.add].stage = Stage::Backward;
  const ValueId first = rewriter.add_before(c.add, "Neg", "first", {c.y});
  const ValueId second = rewriter.add_before(c.add, "Neg", "second", {first});
  const ValueId after = rewriter.add_after(c.relu, "Exp", "after", {c.y});
  CHECK(rewriter.readers(c.y) == Readers{c.add, c.add, 4, 6});
  CHECK(rewriter.readers(first) == Readers{5});
  CHECK(rewriter.readers(after).empty());
  CHECK(rewriter.value(second).type == rewriter.value(c.y).type);
  CHECK(rewriter.node(5).stage == Stage::Backward);
  rewriter.move_before(c.abs, c.relu);
  rewriter.finish();
  CHECK(c.names() == Names{"unread", "y", "after", "first", "second", "z", "out"});
}

TEST_CASE("calls keep the nodes that take their attributes, but for those that are gone") {
  Chain c;
  const auto of = [](NodeId node) { return CallAttribute::Taker{node, "k"}; };
  c.graph.calls = {{"h", "f", "k", {}, {of(c.relu), of(c.neg), of(c.abs)}}, {"i", "f", "k", {}, {of(c.neg)}}};
  Rewriter rewriter(c.graph);
  rewriter.move_before(c.abs, c.relu);
  rewriter.remove(c.neg);
  rewriter.finish();
  Names takers;
  for (const CallAttribute::Taker& taker : c.graph.calls[0].takers) takers.push_back(c.graph.nodes[taker.node].name);
  CHECK(takers == Names{"y", "unread"});
  CHECK(c.graph.calls[1].takers.empty());
}

}  // namespace
}  // namespace rewriter_test
