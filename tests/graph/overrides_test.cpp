// SPDX-License-Identifier: Apache-2.0

// --set: attributes changed from the command line.

#include "graph/file/overrides.h"

#include <doctest/doctest.h>

#include "graph/file/graph_file.h"
#include "tests/graph/file_fixture.h"

using namespace arbalest;

namespace overrides_test {
namespace {

Graph network() {
  return read_graph_text(R"(g (float[2] x, float[2] w) => ()
{
  image, label = arbalest.Prefetch <source = "glyphs:"> ()
  h1 = block (x)
  plain = Conv (h1, w)
  trained = arbalest.Train <lr = 0.1> (plain)
}
block (a) => (b) { c1 = arbalest.Conv <filters = 4> (a) b = arbalest.Conv <filters = 4> (c1) }
)",
                         "f", file_test_ops());
}

template <typename T>
T after(const char* assignment, const char* node, const char* attribute) {
  Graph graph = network();
  apply_override(graph, assignment);
  const Node& changed = graph.nodes.at(graph.find_node(node));
  return std::get<T>(*changed.attributes.find(attribute));
}

std::string failure(const char* assignment) {
  return error_of([&] {
    Graph graph = network();
    apply_override(graph, assignment);
  });
}

bool has(const std::string& text, const char* phrase) {
  return text.find(phrase) != std::string::npos;
}

// Calls that pass attributes on, one of them from a call around it.
Graph calling() {
  return read_graph_text(R"(g (float[2] x) => ()
{
  s = b.stage <filters = 4> (x)
  t = b.stage <filters = 4, k = [1, 1]> (s)
  u = b.sized <count = 3> (t)
}
<domain: "b"> stage <filters, k: ints = [3, 3]> (a) => (b)
{ inner = b.pair <filters = @filters> (a) b = arbalest.Conv <filters = @filters, strides = @k> (inner) }
<domain: "b"> pair <filters> (a) => (b) { c = arbalest.Conv <filters = @filters> (a) b = Relu (c) }
<domain: "b"> sized <count> (a) => (b) { n = Constant <value_int = @count> () b = Relu (a) }
)",
                         "f", file_test_ops());
}

Attribute of(const Graph& graph, const char* node, const char* attribute) {
  return *graph.nodes.at(graph.find_node(node)).attributes.find(attribute);
}

}  // namespace

TEST_CASE("overrides: an attribute of a call changes wherever the function's nodes take it") {
  Graph graph = calling();
  CHECK(apply_override(graph, "s.filters=48") == "");
  CHECK(of(graph, "s/inner/c", "filters") == Attribute(int64_t{48}));
  CHECK(of(graph, "s", "filters") == Attribute(int64_t{48}));
  CHECK(of(graph, "t", "filters") == Attribute(int64_t{4}));
  CHECK(apply_override(graph, "s.k=2,2") == "");  // a default of the function
  CHECK(of(graph, "s", "strides") == Attribute(std::vector<int64_t>{2, 2}));
  CHECK(apply_override(graph, "t/inner.filters=5") == "");
  CHECK(of(graph, "t/inner/c", "filters") == Attribute(int64_t{5}));
  CHECK(of(graph, "t", "filters") == Attribute(int64_t{4}));
  CHECK(has(apply_override(graph, "t.k=1,1"), "changes nothing"));
  CHECK(apply_override(graph, "s.filters=6") == "--set s.filters=6: replaces --set s.filters=48");
  const auto refused = [](const char* assignment) {
    return error_of([&] {
      Graph changed = calling();
      apply_override(changed, assignment);
    });
  };
  CHECK(has(refused("s.filters=many"), "found 'many', expected a whole number"));
  CHECK(has(refused("s.filtres=1"), "b.stage has no attribute 'filtres'; it has: filters, k; did you mean 'filters'?"));
  CHECK(has(refused("u.count=4"), "attribute 'count' of the call 'u' (b.sized) says how the graph's file is read"));
  CHECK(has(error_of([&] {
              refuse_two_names(
                  graph, {{"--vary s.filters", "s.filters=1"}, {"--vary s/inner/c.filters", "s/inner/c.filters=1"}});
            }),
            "--vary s.filters and --vary s/inner/c.filters both change the attribute 'filters' of node 's/inner/c'"));
}

TEST_CASE("overrides: a node that has the attribute by itself is meant before a call of its name") {
  const auto changed = [](const char* assignment) {
    Graph graph = read_graph_text(R"(g (float[2] x) => ()
{
  h = b.two <filters = 16, strides = [2, 2]> (x)
  t = b.taken <filters = 16> (h)
  [concat] u = b.inner <axis = 2> (t)
  w = Concat (u, x)
  [relu] v = b.taken <filters = 4> (w)
}
<domain: "b"> two <filters, strides: ints> (a) => (b)
{ c = arbalest.Conv <filters = @filters, strides = @strides> (a) b = arbalest.Conv <filters = 24> (c) }
<domain: "b"> taken <filters> (a) => (b)
{ c = arbalest.Conv <filters = 3> (a) d = b.pair <filters = @filters> (c) b = Relu (d) }
<domain: "b"> pair <filters> (a) => (b) { c = arbalest.Conv <filters = @filters> (a) b = Relu (c) }
<domain: "b"> inner <axis> (a) => (b) { n = Constant <value_int = @axis> () b = Relu (a) }
)",
                                  "f", file_test_ops());
    CHECK(apply_override(graph, assignment) == "");
    std::vector<std::string> names;
    for (const Node& node : graph.nodes) {
      for (const NamedAttribute& each : node.attributes) {
        if (is_override(each)) names.push_back(node.name + "." + each.name);
      }
    }
    return names;
  };
  using Names = std::vector<std::string>;
  CHECK(changed("h.filters=7") == Names{"h.filters"});
  CHECK(changed("h.strides=3,3") == Names{"h.strides"});  // the node has the default
  CHECK(changed("t.filters=7") == Names{"t/d/c.filters"});
  CHECK(changed("concat.axis=1") == Names{"w.axis"});  // the only node of that operator
  CHECK(changed("relu.filters=7") == Names{"relu/d/c.filters"});
}

TEST_CASE("overrides: an attribute of a call that no node takes is refused") {
  const Graph graph = read_graph_text(R"(g (float[2] x) => ()
{ h = b.idle <unused = 1, below = 2> (x) }
<domain: "b"> idle <unused, below> (a) => (b) { b = b.under <below = @below> (a) }
<domain: "b"> under <below> (a) => (b) { b = Relu (a) }
)",
                                      "f", file_test_ops());
  const auto refused = [&](const char* assignment) {
    const std::string targets = error_of([&] { override_targets(graph, assignment, "--vary"); });
    const std::string applied = error_of([&] {
      Graph changed = graph;
      apply_override(changed, assignment, "--vary");
    });
    CHECK(targets == applied);
    return applied;
  };
  CHECK(refused("h.unused=abc") ==
        "--vary h.unused=abc: no node of the call 'h' (b.idle) takes its attribute 'unused'");
  CHECK(refused("h.unused=") == "--vary h.unused=: no node of the call 'h' (b.idle) takes its attribute 'unused'");
  CHECK(has(refused("h.below=3"), "no node of the call 'h' (b.idle) takes its attribute 'below'"));
}

TEST_CASE("overrides: a node by its output, or by its operator where that is unique") {
  CHECK(after<double>("train.lr=0.05", "trained", "lr") == 0.05);
  CHECK(after<double>("trained.lr=1", "trained", "lr") == 1.0);
  CHECK(after<std::string>("prefetch.source=mnist:a=b.c", "image", "source") == "mnist:a=b.c");
  CHECK(after<int64_t>("h1/c1.filters=32", "h1/c1", "filters") == 32);
  CHECK(after<int64_t>("plain.group = 2", "plain", "group") == 2);
}

TEST_CASE("overrides: values are read as the attribute's kind") {
  using Reals = std::vector<double>;
  using Texts = std::vector<std::string>;
  CHECK(after<std::vector<int64_t>>("plain.strides=[1, 2]", "plain", "strides") == std::vector<int64_t>{1, 2});
  CHECK(after<std::vector<int64_t>>("plain.strides=1,2", "plain", "strides") == std::vector<int64_t>{1, 2});
  CHECK(after<std::vector<int64_t>>("plain.strides=[]", "plain", "strides").empty());
  CHECK(after<Reals>("train.milestones=80,120.5", "trained", "milestones") == Reals{80, 120.5});
  CHECK(after<std::string>("train.schedule=cosine", "trained", "schedule") == "cosine");
  CHECK(after<std::string>("train.schedule=\"a \\\"b\\\"\"", "trained", "schedule") == "a \"b\"");
  CHECK(after<Texts>("prefetch.tags=[a, \"b, c\"]", "image", "tags") == Texts{"a", "b, c"});
}

TEST_CASE("overrides: what does not fit is refused with the nearest name") {
  CHECK(has(failure("train.lrr=1"),
            "no attribute 'lrr'; it has: lr, momentum, schedule, milestones; did you mean 'lr'?"));
  CHECK(has(failure("trian.lr=1"), "no node 'trian'"));
  CHECK(has(failure("trian.lr=1"), "did you mean 'train"));
  CHECK(has(failure("train.lr=fast"), "--set train.lr=fast: found 'fast', expected a number"));
  CHECK(has(failure("h1/c1.filters=1.5"), "expected a whole number"));
  CHECK(has(failure("h1/c1.filters="), "expected a whole number"));
  CHECK(has(failure("plain.strides=[1, 2"), "expected ']'"));
  CHECK(has(failure("plain.strides=1,,2"), "found '', expected a whole number"));
  CHECK(has(failure("train.lr"), "expected NODE.ATTRIBUTE=VALUE"));
  CHECK(has(failure("lr=1"), "expected NODE.ATTRIBUTE=VALUE"));
  CHECK(has(failure("=.x"), "expected NODE.ATTRIBUTE=VALUE"));
  const std::string ambiguous = failure("conv.strides=1,1");
  CHECK(has(ambiguous, "3 nodes apply 'conv'"));
  CHECK(has(ambiguous, "h1/c1, h1, plain"));
}

TEST_CASE("attributes of augmentation under the names of others") {
  const std::vector<std::string> names = {"pad", "crop", "flip", "vertical_flip", "area", "ratio", "resize", "rotate"};
  CHECK(nearest_name("rotation", names) == "rotate");
  CHECK(nearest_name("scale", names) == "area");
  CHECK(nearest_name("ration", names) == "ratio");
  CHECK(nearest_name("rnu", std::vector<std::string>{"run", "ops"}) == "run");
  CHECK(nearest_name("scale", std::vector<std::string>{"lr"}).empty());
}

TEST_CASE("overrides: what changes nothing, or is changed again, is reported") {
  Graph graph = network();
  CHECK(apply_override(graph, "train.lr=0.1") ==
        "--set train.lr=0.1: changes nothing, the graph has that value already");
  CHECK(apply_override(graph, "train.lr=0.2") == "--set train.lr=0.2: replaces --set train.lr=0.1");
  CHECK(apply_override(graph, "h1/c1.filters=8") == "");
  CHECK(has(apply_override(graph, "train.momentum=0"), "changes nothing"));  // by default
  CHECK(is_override(*graph.nodes[graph.find_node("trained")].attributes.find_named("lr")));
}

TEST_CASE("overrides: two names of one attribute are refused, by the names that messages have for them") {
  const Graph graph = network();
  refuse_two_names(graph, {{"a", "train.lr=1"}, {"b", "train.momentum=1"}, {"c", "h1/c1.filters=1"}});
  CHECK(error_of([&] {
          refuse_two_names(graph, {{"--vary train.lr", "train.lr=1"},
                                   {"--folds", "prefetch.source=x"},
                                   {"--vary trained.lr", "trained.lr=1"}});
        }) ==
        "--vary train.lr and --vary trained.lr both change the attribute 'lr' of node 'trained'; expected one of "
        "them");
  CHECK(has(error_of([&] {
              refuse_two_names(graph, {{"a", "trian.lr=1"}}, "--vary");
            }),
            "--vary trian.lr=1: the graph has no node 'trian'"));
}

}  // namespace overrides_test
