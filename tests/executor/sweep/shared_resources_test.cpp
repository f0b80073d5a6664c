// SPDX-License-Identifier: Apache-2.0
#include "executor/session/shared_resources.h"

#include <doctest/doctest.h>

#include <memory>
#include <stdexcept>
#include <string>

using namespace arbalest;

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

TEST_CASE("shared resources: samples hold the sources that they are of") {
  SharedResources shared(1, 1, false);
  std::weak_ptr<const Source> held;
  const auto stores = shared.samples("samples", [&] {
    SampleStores made;
    made.training = open_source("synthetic:?size=8", "train", 1);
    held = made.training;
    return made;
  });
  CHECK(!held.expired());
  CHECK(shared.samples("samples", []() -> SampleStores { throw std::logic_error("made again"); }) == stores);
}

}  // namespace shared_resources_test
