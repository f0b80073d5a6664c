// SPDX-License-Identifier: Apache-2.0
#include "executor/session/shared_resources.h"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>

#include "io/open/open_source.h"
#include "tests/executor/fixture.h"

using namespace arbalest;
using namespace arbalest::test;

namespace shared_resources_test {

TEST_CASE("shared resources: a name is made once while it is used, or was asked for lately") {
  SharedResources shared(1, 1, false);
  int made = 0;
  const auto ask = [&](const std::string& name) {
    return shared.source(name, [&] {
      ++made;
      return std::shared_ptr<const Source>(open_source("synthetic:?size=8", "train", 1));
    });
  };
  const auto used = ask("used");
  CHECK(ask("used") == used);
  CHECK(made == 1);
  for (int other = 0; other < 5; ++other) ask("other " + std::to_string(other));
  CHECK(made == 6);
  CHECK(ask("used") == used);  // it is held here
  CHECK(made == 6);
  ask("other 4");  // asked for lately
  CHECK(made == 6);
  ask("other 0");  // forgotten
  CHECK(made == 7);
}

TEST_CASE("shared resources: runs are set up for as many as are expected by then") {
  SessionOptions options;
  options.learners.devices = {{PlanDevice::Kind::Cpu, 0}};
  options.shared = std::make_shared<SharedResources>(4, 1, false);
  Prepared prepared = prepare(tiny(TinyNet()), options);
  CHECK(prepared.request.at_once == 4);
  options.shared->expect(16);
  CHECK(prepared.request.at_once == 4);
  set_learners(prepared, 1, options);
  CHECK(prepared.request.at_once == 16);
  CHECK(prepare(tiny(TinyNet()), options).request.at_once == 16);
}

TEST_CASE("shared resources: samples hold the sources that they are of") {
  SessionOptions options;
  options.learners.devices = {{PlanDevice::Kind::Cpu, 0}};
  options.shared = std::make_shared<SharedResources>(1, 1, false);
  const auto prepared = [&](int fold) {
    TinyNet net;
    net.source += "&folds=3&fold=" + std::to_string(fold);
    Graph graph = tiny(net);
    graph.find_op("arbalest.Prefetch")->attributes.set("cache", std::string("device"));
    return prepare(std::move(graph), options);
  };
  const Prepared one = prepared(1), again = prepared(1), two = prepared(2);
  REQUIRE(one.shared_stores);
  // Otherwise another source might get its address, by which samples are found.
  CHECK(one.shared_stores->training == one.training);
  CHECK(one.shared_stores->validation == one.validation);
  CHECK(again.shared_stores == one.shared_stores);
  CHECK(two.shared_stores != one.shared_stores);
}

}  // namespace shared_resources_test
