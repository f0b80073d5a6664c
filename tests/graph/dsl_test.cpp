// The C++ DSL: what it refuses. What it builds is judged by the examples (tests/examples).

#include <doctest/doctest.h>

#include "graph/dsl/dsl.h"
#include "tests/graph/file_fixture.h"

using namespace arbalest;

TEST_CASE("the DSL refuses unknown operators, taken names and tensors of other models") {
  Model model("one"), other("two");
  auto [image, label] = prefetch(model, {.source = "synthetic:"});
  const Tensor x = augment(image, {}).named("x");
  CHECK(x.name() == "x");
  CHECK(error_of([&] { model.add("Rellu", {x}, {}); }).find("did you mean 'Relu'?") != std::string::npos);
  CHECK(error_of([&] { model.add("arbalest.Sgd", {x}, {}); }).find("unknown operator") != std::string::npos);
  CHECK(error_of([&] { relu(x).named("x"); }).find("'x' is taken") != std::string::npos);
  CHECK(error_of([&] { other.add("Relu", {x}, {}); }).find("'x' belongs to another model") != std::string::npos);
}
